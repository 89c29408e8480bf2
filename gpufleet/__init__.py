"""The library behind stacks, watchdogs, hosts and the command line."""
