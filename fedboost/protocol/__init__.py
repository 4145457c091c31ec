"""Who says what, and when: terms, queries, messages, and the two sessions. Pure: no sockets, no clocks."""
