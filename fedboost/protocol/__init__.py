"""The protocol: queries, messages, and the two ends of a session. Pure: no sockets, no clocks."""
