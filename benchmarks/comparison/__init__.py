"""Ten scripted runs of a real engine, of the simulated engine and of the report models, and their comparison."""
