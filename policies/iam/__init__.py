"""What the program may allow on both clouds: lists of its own permissions, and the comparison of a plan with them."""
