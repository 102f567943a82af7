"""Tool calls and reasoning: the formats that models write, their readers, and grammars that force a call."""
