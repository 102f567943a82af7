"""The Responses API: its body as a chat, its answer in items, and what is kept of it."""
