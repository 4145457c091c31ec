"""Training on one machine: simulation, local clusters, estimates."""
