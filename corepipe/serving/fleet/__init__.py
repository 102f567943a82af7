"""One endpoint over several machines: engines on hosts, one journal in front of them."""
