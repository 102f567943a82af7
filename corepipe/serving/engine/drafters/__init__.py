"""Who guesses how an answer goes on: a file for each way to do so."""
