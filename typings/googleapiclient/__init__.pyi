"""What this project uses of google-api-python-client, which carries no types."""
