"""HAProxy as the front door: what its configuration says, and what is told to the running process."""
