"""Answers: tokens become text, and text becomes parts such as reasoning and tool calls."""
