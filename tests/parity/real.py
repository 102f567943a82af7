"""The inputs of the goldens of SmolLM2-135M-Instruct: prompts, text, sizes."""

from __future__ import annotations

from pathlib import Path

from corepipe.models import hub
from tests.parity.families import DATA

GOLDEN = DATA / "smollm2"
PERPLEXITY_TEXT = DATA / "perplexity.txt"
WINDOWS, WINDOW = 16, 513
"""Windows of 513 tokens predict 512 each: 8,192 predictions in all."""
NEW_TOKENS = 64
LOGIT_POSITIONS = (0, 7, 64, 511)

QUESTIONS = (
    "What is the capital of France?",
    "Explain in two sentences why the sky is blue.",
    "Write a short poem about the sea.",
    "How do I boil an egg?",
    "List three uses for a paper clip.",
    "What is the difference between a list and a tuple in Python?",
    "Translate 'good morning' into Spanish.",
    "Who wrote Romeo and Juliet?",
    "Give me a recipe for pancakes.",
    "What is 17 plus 25?",
)
BEGINNINGS = (
    "Once upon a time, in a village by the river,",
    "The three laws of thermodynamics state that",
    "def fibonacci(n):\n    ",
    "The quick brown fox",
    "In 1969, the first humans",
    "A binary search works by",
    "Dear Sir or Madam,\n\nI am writing to",
    "Photosynthesis is the process by which",
    "1, 2, 3, 4, 5,",
    "The most important thing about friendship is",
)
TOKENIZER_SAMPLES = (
    "",
    " ",
    "Hello, world!",
    "  two spaces, then  12 and 3.14159",
    "line\n\n\nbreaks\tand\ttabs\r\n",
    "It's we'll I'M they've don't",
    "na\u00efve caf\u00e9 \u4f60\u597d \u0645\u0631\u062d\u0628\u0627",
    "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "<|im_start|>user\nhi<|im_end|>\n",
    "x = [i ** 2 for i in range(100)]  # squares",
    "\x00\x01\u200b\ufeff",
    "ALLCAPS MixedCase snake_case kebab-case",
    "1234567890 1,000,000.00 0x1F",
)


def prompts() -> list[str]:
    """Ten conversations in the model's own chat form, and ten texts to continue."""
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    chats = [
        f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
        for question in QUESTIONS
    ]
    return [*chats, *BEGINNINGS]


def model_path() -> Path:
    """The GGUF file, fetched into the cache if it is not there yet."""
    return hub.resolve(hub.DEFAULT_MODEL)
