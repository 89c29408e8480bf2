"""How many ready replicas a pool needs. Pure: the same arguments give the same plan."""
