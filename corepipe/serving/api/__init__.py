"""The HTTP API, from a connection to an answer."""
