"""The terms of a session: what every party agreed to. One flat file, read into groups of settings. Pure."""
