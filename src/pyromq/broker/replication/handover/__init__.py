"""What happens to the requests of clients when another replica of the set becomes the master."""
