"""Checkpoints: safetensors, GGUF and PyTorch files, and the weights in them."""
