"""The store of facts, decisions, outcomes, targets, leases and messages."""
