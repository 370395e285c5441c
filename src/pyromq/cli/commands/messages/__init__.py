"""Commands about messages: sent, read, waiting, failed, undecided."""
