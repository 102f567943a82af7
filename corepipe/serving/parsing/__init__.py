"""Tool calls and reasoning: how models write them, how answers are read, and how calls are forced."""
