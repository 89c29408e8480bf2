"""The control host's software: its bundle, its boot data, its units, and releases that can be taken back."""
