"""A read-only look at accounts: what their GPU instances cost, and what they do. Values and functions only."""
