"""HTTP: connections, limits, hosts, keys, origins, TLS and errors."""
