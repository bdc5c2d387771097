"""layer_norm_modulate: its speed on a CPU, and on a GPU the bytes that it moves."""
