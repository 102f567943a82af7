"""`python -m corepipe`."""

from corepipe.cli import main

main()
