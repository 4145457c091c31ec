"""Lets several workers of a cluster hold a site's rows. Their answers are added before they leave the
site."""
