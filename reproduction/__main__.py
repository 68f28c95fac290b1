"""``python -m reproduction``: run the experiments of the paper, judge them and write the report."""

import sys

from reproduction.reproduce_command import command

if __name__ == "__main__":
    sys.exit(command(sys.argv[1:]))
