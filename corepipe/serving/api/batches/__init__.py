"""Files and batches: what clients upload, and requests that are answered when nothing else is to do."""
