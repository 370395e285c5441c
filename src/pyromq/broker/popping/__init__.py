"""Pop consumption: messages handed out for a time, acknowledged one by one, and redelivered when the time is over."""
