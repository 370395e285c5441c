"""The proxy: serves RocketMQ 5's clients by gRPC, and is itself a remoting client of name servers and brokers."""
