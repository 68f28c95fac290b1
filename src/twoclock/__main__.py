"""``python -m twoclock``: the command line where no script was installed."""

from twoclock.cli import program

if __name__ == "__main__":
    program()
