"""Benchmarks of layer_norm_modulate: time on a CPU, memory traffic on a GPU."""
