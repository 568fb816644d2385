"""`python -m natgrad_studies.cli`."""

from . import main

main()
