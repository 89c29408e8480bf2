"""Pulumi ComponentResources, one package per cloud, of the same public shape."""
