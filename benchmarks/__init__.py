"""Benchmarks against rivals, interleaved in one run; each module prints ratios."""
