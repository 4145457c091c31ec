"""Protocol of a session: queries, messages, and its two ends, without sockets and clocks."""
