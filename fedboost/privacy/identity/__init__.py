"""Identities: X.509 certificates of a consortium, and signatures."""
