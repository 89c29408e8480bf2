"""What the Makefile calls. `setup` runs before there is an environment: standard library only."""
