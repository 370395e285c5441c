"""A client's view of the cluster: name servers, connections, routes, heartbeats."""
