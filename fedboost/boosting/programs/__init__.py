"""Programs of sessions: generators that yield queries to all parties and receive the sums of the answers."""
