"""Generates the Prometheus configuration, rules, alerts and dashboards from one set of metric names."""
