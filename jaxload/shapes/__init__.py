"""Latent shapes: their rules, the clips that fill them, and which to use."""
