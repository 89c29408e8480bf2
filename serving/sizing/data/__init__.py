"""Measured serving speeds; `SOURCE.md` gives their sources."""
