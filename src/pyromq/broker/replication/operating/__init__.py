"""What administrators see of a replica set and ask of it: state, planned failover, accepted loss, metrics."""
