"""Draws clips from a model."""
