"""A shop whose orders are billed, and whose customers are reminded: the tutorial of pyromq."""
