"""The engine: requests in, tokens out. It runs in a process of its own, in a library or in a simulation."""
