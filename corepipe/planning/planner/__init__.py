"""The planner: the cheapest deployment that meets its objectives."""
