"""The engine as a Python library: `LLM(model).generate(prompts)`."""
