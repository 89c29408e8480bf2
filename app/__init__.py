"""Use cases: what the commands, the daemon and the functions run. Raises AppError and prints nothing."""
