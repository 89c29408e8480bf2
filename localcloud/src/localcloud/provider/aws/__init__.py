"""AWS resource types of the local provider, one file per service."""
