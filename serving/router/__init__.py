"""The router: renders HAProxy's configuration, and updates the running HAProxy."""
