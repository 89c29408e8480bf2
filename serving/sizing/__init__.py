"""Calculates a model's GPU requirements from its configuration and headers, with the formulas of vLLM 0.32."""
