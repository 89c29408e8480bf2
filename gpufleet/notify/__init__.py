"""Messages to people: Slack, delivered once from the ledger's outbox."""
