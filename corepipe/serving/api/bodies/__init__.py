"""Bodies of requests: how they are read and checked, and settings of other servers."""
