"""A site's rows on several workers of a cluster, whose answers are added before anything leaves the site."""
