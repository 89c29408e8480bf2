"""The words that the whole repository uses. Standard library only, but for `document`."""
