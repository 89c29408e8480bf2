"""The `gpufleet` command and the entry points: thin, they wire the rooms."""
