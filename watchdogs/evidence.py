"""What the metrics say of an instance. Pure types."""
