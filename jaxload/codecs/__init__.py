"""Codecs (pixels to latents) and text encoders (captions to embeddings)."""
