"""Text and token ids: tokenizers, chat templates, and what clients may write in them."""
