"""Emulated machines: private roots, a supervisor for units, the image's commands."""
