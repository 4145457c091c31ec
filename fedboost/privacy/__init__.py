"""Protections: how a party's vector is sealed, added and opened. Pure; independent of gbdt."""
