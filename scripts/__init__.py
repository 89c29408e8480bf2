"""Commands of the Makefile. `setup` runs before the environment exists, so it uses the standard library only."""
