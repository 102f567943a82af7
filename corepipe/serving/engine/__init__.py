"""The engine, in a process of its own, in a library or in a simulation: requests in, tokens out."""
