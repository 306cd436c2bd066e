"""`python -m strata`."""

from .main import main

main()
