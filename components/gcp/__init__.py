"""Components of a GPU fleet on Google Cloud."""
