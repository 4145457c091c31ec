"""Sums over encrypted rows: one party encrypts the gradient and hessian of each of its rows, others multiply
ciphertexts of the rows in a bin, and what they report is the encryption of the sums.

Designed for: feature holders that keep to the protocol and must not read gradients. What a label holder may
see of a report is decided in ends.py.

Promises: an opened report is, integer for integer, the histogram of the plain gradients; a report has as many
bytes as its number of cells says, whatever the rows are. Importing this package imports none of the packages
that only encryption needs.

scheme.py: where a sum stands in a plaintext; sums.py: rows and sums under Paillier's keys, with products by
gmpy2 or by kernels.py; ends.py: blinded openings that are checked, the proof of a key, the two ends of a
session.
"""
