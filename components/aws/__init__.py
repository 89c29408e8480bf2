"""A GPU fleet's parts on AWS."""
