"""The AWS half of the embedded cloud: moto, extended for what it lacks."""
