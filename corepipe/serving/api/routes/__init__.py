"""Endpoints: a file each, and the documents that are made of them."""
