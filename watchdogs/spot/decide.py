"""How large each group of a pool should be. Pure: the same arguments give the same plan."""
