"""Prometheus configuration, alert and recording rules, Grafana dashboards."""
