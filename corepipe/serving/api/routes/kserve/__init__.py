"""The Open Inference Protocol (KServe): tensors in and out, health and metadata."""
