"""The frozen digest: Programs, predicted times and tokens as they were, and the comparison with the code.

docs/decisions/2026-11-22-frozen-digest.md says why, and what to do where a difference is intended.
"""
