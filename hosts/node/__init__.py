"""The agent of a GPU instance: boots the instance step by step, reports its state and drains it."""
