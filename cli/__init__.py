"""The `gpufleet` command and its entry points: thin code that connects the packages."""
