"""HTTP/2 as far as gRPC servers need it: frames, flow control, header blocks. Knows no RocketMQ."""
