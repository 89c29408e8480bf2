"""What it cost: collector, allocation, USD per million tokens, reports."""
