"""What a model's trees say: each feature's share in a prediction, and the trees as text and as a picture."""
