"""Loss, step, loop, checkpoints and telemetry."""
