"""`make demo`: the main use case on the embedded cloud, with the product's own commands."""
