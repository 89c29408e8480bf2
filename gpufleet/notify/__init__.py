"""Messages to people in Slack, each delivered once from the ledger's outbox."""
