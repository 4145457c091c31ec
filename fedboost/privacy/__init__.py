"""Protections: how a party's vector is hidden, added to the others' vectors, and opened as a sum. Pure code,
independent of `gbdt`."""
