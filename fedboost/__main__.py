"""`python -m fedboost` is the command `fedboost`."""

from fedboost.cli.main import main

main()
