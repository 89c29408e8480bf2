"""A GPU fleet's parts on Google Cloud."""
