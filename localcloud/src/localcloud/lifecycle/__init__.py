"""What starts, watches and ends the parts of the embedded cloud."""
