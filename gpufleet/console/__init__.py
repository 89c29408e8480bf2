"""What people look at: status, top and the read-only web page."""
