"""Software that runs on machines: the node agent, the control host and its monitoring."""
