"""Training: objective, step, optimizer, loop, checkpoints and events."""
