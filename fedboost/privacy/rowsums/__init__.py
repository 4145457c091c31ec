"""Sums over encrypted rows: one party encrypts the gradient and hessian of each of its rows. Other parties
multiply the ciphertexts of the rows in each bin, which adds the plaintexts, and report the encrypted sums.

Feature holders are assumed to follow the protocol, and cannot read gradients. ends.py determines what a label
holder can see of a report.

Guarantees: a decrypted report is exactly the histogram of the unencrypted gradients. The size of a report
depends only on its number of cells, not on the rows. Importing this package does not import the packages that
only encryption needs.

scheme.py defines the position of a sum in a plaintext. sums.py encrypts rows and computes sums under Paillier
keys, with products computed by gmpy2 or kernels.py. ends.py contains the blinding and checked decryption of
sums, the proof of a key, and the two ends of a session."""
