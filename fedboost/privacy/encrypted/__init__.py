"""Additively homomorphic encryption: Paillier behind a contract of schemes."""
