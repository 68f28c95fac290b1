"""``python -m twoclock``: the command line without the installed script."""

from twoclock_command import program

if __name__ == "__main__":
    program()
