"""The two dialects of the language, and the modules under whose names kernels import them."""
