"""Ends instances that do nothing."""
