"""Pulumi component resources, one package per cloud. Both packages have the same public classes."""
