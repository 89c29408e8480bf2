"""What is served, as pure or port-based code: engine, sizing, cache, metric names, router."""
