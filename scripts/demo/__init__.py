"""`make demo`: the main job on the embedded cloud, told with the product's own commands."""
