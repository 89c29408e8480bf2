"""Splits a pool's target over reserved, spot and on-demand."""
