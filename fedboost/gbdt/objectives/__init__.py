"""Objectives: their gradients and links, and the properties that other modules look up."""
