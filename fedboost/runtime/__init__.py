"""Everything with a clock, a file or a socket: tables, parties, aggregator, simulation."""
