"""Batch sizes, schedules and their costs: pure numpy, no devices, no files."""
