"""The start of a server: ports, engines, models, and the messages on stderr meanwhile."""
