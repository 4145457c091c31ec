"""Sums over encrypted rows: one party encrypts the gradient and hessian of each of its rows, others multiply
the ciphertexts of the rows in a bin, and report the encryption of the sums.

Designed for feature holders that follow the protocol and must not read gradients. ends.py decides what a
label holder may see of a report.

Promises: an opened report is, integer for integer, the histogram of the plain gradients; its number of bytes
follows from its number of cells, not from the rows. Importing this package does not import the packages
that only encryption needs.

scheme.py: the position of a sum in a plaintext; sums.py: rows and sums under Paillier keys, with products by
gmpy2 or kernels.py; ends.py: blinded openings that are checked, the proof of a key, the two ends of a
session."""
