"""Google Cloud by its own clients: inventory, groups, notices, prices, objects."""
