"""Google Cloud's resource types on the embedded cloud."""
