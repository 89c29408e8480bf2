"""User interfaces: status, top and the read-only web page."""
