"""Code that uses clocks, files, sockets or processes: tables, parties, the aggregator and the simulation."""
