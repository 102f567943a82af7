"""The cheapest deployment that meets its objectives."""
