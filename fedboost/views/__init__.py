"""Views, which turn results into text, tables and charts for people. They do not train models or read
files."""
