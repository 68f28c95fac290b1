"""``python -m twoclock``: the command line without the installed script, or its quiet Ctrl-C while loading."""

from twoclock.cli import program

if __name__ == "__main__":
    program()
