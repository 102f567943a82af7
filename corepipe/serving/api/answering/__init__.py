"""Shared by the endpoints: from a plan to an answer, streamed or whole."""
