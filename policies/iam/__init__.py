"""What the program may allow on both clouds: lists of what it writes itself, and how a plan is held against them."""
