"""Measures how fast micro-batches are read; see `__main__`."""
