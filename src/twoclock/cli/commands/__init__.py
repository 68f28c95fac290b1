"""One file per command: its options, and `command(args)`, whose docstring is its line in the help."""
