"""AWS by boto3: inventory, groups, notices, prices, objects."""
