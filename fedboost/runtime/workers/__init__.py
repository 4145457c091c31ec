"""Holding a site's rows on several workers of a cluster. The workers' answers are added before anything
leaves the site."""
