"""Entry point of `python -m fedboost`, which runs the command `fedboost`."""

from fedboost.cli.main import main

main()
