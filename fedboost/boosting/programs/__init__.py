"""Training programs: generators that ask questions of all parties and get the sums."""
