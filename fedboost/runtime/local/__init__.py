"""Training on a single machine: simulations, local clusters and cost estimates."""
