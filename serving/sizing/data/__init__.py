"""Facts about serving speed; `SOURCE.md` says where they come from."""
