"""Which shapes run, in what batches and order: pure numpy, no devices, no files."""
