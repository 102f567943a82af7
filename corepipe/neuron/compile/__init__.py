"""The compiler: from a Graph and a Placement to a Program for each core."""
