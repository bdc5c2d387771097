"""Benchmarks of the models."""
