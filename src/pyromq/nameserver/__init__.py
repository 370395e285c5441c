"""The name server: a table of brokers and topics, and answers from it."""
