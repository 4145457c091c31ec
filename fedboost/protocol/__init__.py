"""Protocol of a session: queries, messages, and its two ends. This package uses neither sockets nor
clocks."""
