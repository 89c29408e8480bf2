"""Components of a GPU fleet on AWS."""
