"""RocketMQ's remoting protocol without sockets: frames, typed headers, bodies, one connection's state, dispatch."""
