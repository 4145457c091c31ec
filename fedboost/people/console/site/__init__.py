"""Pages of a site, for the person who decides for it, drawn from facts."""
