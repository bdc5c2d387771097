"""From a config and its samples to a plan."""
