"""The embedded default: clouds on loopback, for the demo and the tests alone."""
