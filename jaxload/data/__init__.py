"""Reads samples from disk into the micro-batches of a schedule."""
