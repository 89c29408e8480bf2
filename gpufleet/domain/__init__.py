"""The domain types of the whole project. Uses only the standard library."""
