"""RocketMQ's remoting protocol without sockets: frames, headers, bodies, sessions, and dispatch of requests."""
