"""The console that an aggregator serves: pages for people, JSON for programs, drawn in `people.console`."""
