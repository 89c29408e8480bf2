"""The agent of a GPU instance: boots it step by step, says how it is, drains it."""
