"""Masters and slaves as in RocketMQ 4.9: the HA stream, by which a slave copies the log of its master."""
