"""`corepipe bench`: a load generator for any OpenAI-compatible server, and what it reports."""
