"""Latent shapes: rules, clips, assignment of clips to shapes, choice of shapes."""
