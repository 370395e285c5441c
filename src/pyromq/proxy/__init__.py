"""The proxy: RocketMQ 5's gRPC protocol in front, the remoting protocol of name servers and brokers behind."""
