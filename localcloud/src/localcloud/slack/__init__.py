"""A Slack of our own on loopback: takes what is posted and shows it."""
