"""Objectives: gradients, links, and the facts that the rest of the package looks up."""
