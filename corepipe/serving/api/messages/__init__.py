"""Anthropic's Messages: bodies that are translated into chats, and answers in blocks."""
