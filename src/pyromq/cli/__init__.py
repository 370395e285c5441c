"""The command line: reads options, files and the environment, calls servers and clients, prints."""
