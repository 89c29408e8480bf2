"""What a plan will cost before it is spent: from the resources of a preview to USD per hour and month."""
