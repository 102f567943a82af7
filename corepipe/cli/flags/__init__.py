"""Flags of the commands, and the settings that are made of them."""
