"""The server's side of its engine: kept alive, and with it what its clients wait for."""
