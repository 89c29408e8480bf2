"""Use cases behind the commands, the daemon and the functions. They raise AppError and print nothing."""
