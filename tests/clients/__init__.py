"""Real clients against a real server, in their chat forms: `make clients`."""
