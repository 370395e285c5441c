"""The tables that follow the log in a replica set: what a master sends, and what a follower takes in."""
