"""The same decisions on recorded histories, beside known rules."""
