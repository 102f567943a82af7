"""The scheduler: which tokens of which requests a batch computes, and which KV blocks they hold."""
