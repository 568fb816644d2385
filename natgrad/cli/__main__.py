"""`python -m natgrad.cli`."""

from . import main

main()
