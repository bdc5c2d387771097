"""Sampling of clips from a model."""
