"""What the product asks of the clouds, by their own clients."""
