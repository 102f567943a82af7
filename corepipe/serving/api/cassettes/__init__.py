"""Cassettes: exchanges with clients, recorded into files and replayed from them."""
