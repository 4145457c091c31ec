"""Protections: how a party's vector is hidden, added to the others' vectors, and opened as a sum. The package
does not use the network or read a site's files, and does not depend on `gbdt`."""
