"""What people configure and what `pulumi up` publishes, as validated types (pydantic)."""
