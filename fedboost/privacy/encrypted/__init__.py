"""Additively homomorphic encryption: Paillier and BFV behind one contract."""
