"""Views turn results into text, tables and charts for people. They train no models and read no files."""
