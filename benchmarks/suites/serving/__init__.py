"""The suite `serving`: a DeepFM that answers requests."""
