"""The Slack sink: accepts messages as Slack does, and shows them."""
