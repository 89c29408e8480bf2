"""Prometheus configuration, rules, alerts and dashboards, written from one set of metric names."""
