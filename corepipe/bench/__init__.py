"""`corepipe bench`: a load generator for OpenAI-compatible servers, and its reports."""
