"""AWS clients (boto3): inventory, groups, notices, prices, objects."""
