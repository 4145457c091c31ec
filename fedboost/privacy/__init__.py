"""Protections: how a party's vector is hidden, added to the others' vectors, and opened as a sum. This
package is pure code and does not depend on `gbdt`."""
