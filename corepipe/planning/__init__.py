"""Planning: the cheapest deployment, calibration by measurements, profiles and buckets."""
