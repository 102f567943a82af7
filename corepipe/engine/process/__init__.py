"""The process of an engine: its messages with the server, its log and its KV events."""
