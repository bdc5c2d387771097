"""Planning: turns a config and its samples into a plan."""
