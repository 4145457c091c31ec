"""Terms of a session: the settings that every party agrees on. A terms file is one flat table, whose keys are
read into groups of settings."""
