"""The page of a site, which its own process serves on a loopback address."""
