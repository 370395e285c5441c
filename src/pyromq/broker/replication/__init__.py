"""A broker's second machine: masters and slaves as in RocketMQ 4.9, and replica sets that fail over by themselves."""
