"""The server: HTTP, the supervision of engines, metrics, and fleets of machines."""
