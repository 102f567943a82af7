"""Adapters: small matrices in PEFT's format, which change the Linears of a model for some requests."""
