"""The name server: keeps a table of brokers and topics, and answers requests from this table."""
