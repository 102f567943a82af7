"""Plans: what their flags ask for, plans of encoders and of buckets, and how all are printed."""
