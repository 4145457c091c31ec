"""Protections: how a party's vector is sealed, added and opened. Siblings of gbdt; pure."""
