"""Generates the lists of the policy pack from the program: `python -m scripts.policy_lists`. A test compares them."""
