"""Views: they turn results into text for people, and neither train nor read files."""
