"""Replays recorded histories against the production rules and against known reference rules."""
