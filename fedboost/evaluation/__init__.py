"""The worth of models: metrics on held-out rows, and what joining is worth to a site."""
