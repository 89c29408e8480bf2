"""Model weights on local disks: whole and verified, or not there at all. Standard library only (it travels)."""
