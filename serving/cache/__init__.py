"""Model weights on local disks: complete and verified, or absent. Standard library only: it is part of the agent."""
