"""Benchmarks that produce the numbers in README and docs. No test depends on them."""
