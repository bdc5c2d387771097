"""From samples on disk to the micro-batches that the schedule names."""
