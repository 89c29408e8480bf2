"""The control host's software: its bundle, boot data and units, and releases that can be rolled back."""
