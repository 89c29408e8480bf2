"""Sets a pool's target from its load."""
