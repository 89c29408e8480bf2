"""The library that stacks, watchdogs, hosts and the command line stand on."""
