"""Supervision: the server's side of its engine, which is restarted without losing requests."""
