"""What watchdogs read of a fleet: groups, instances, agents, activities and why instances ended."""
