"""Emulated machines: a private root, a supervisor for systemd units, and the commands of the image."""
