"""Which instances to end. Pure: the same arguments give the same plan."""
