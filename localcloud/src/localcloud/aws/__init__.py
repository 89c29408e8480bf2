"""The emulated AWS: moto, with what it lacks."""
