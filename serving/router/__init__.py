"""HAProxy's configuration and the controller around it."""
