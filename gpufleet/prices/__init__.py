"""The price book and the plan's cost."""
