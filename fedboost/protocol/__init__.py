"""Protocol of a session: queries, messages, and its two ends. It uses no sockets and no clocks."""
