"""Text and token ids: tokenizers, chat templates, and the text that clients may send."""
