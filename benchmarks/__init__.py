"""Measurements behind the numbers of README and docs; no test depends on them."""
