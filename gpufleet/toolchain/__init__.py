"""The folders of the clone and the external programs that the project runs. Uses only the standard library."""
