"""Runs a command: `python -m jaxload COMMAND`."""

import sys

from jaxload.cli import main

if __name__ == "__main__":
    sys.exit(main())
