"""Clients' requests while another replica of the set becomes the master."""
