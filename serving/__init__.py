"""Model serving: engine, sizing, cache, metric names, router. The code is pure or uses ports."""
