"""The agent of a GPU instance: boot, serve its status, drain."""
