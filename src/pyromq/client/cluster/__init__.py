"""A client's place in the cluster: name servers, connections, routes, heartbeats."""
