"""Who may ask a broker what: accounts and their rights, as RocketMQ 4.9 keeps them."""
