"""The version, in one place: the build reads it from here, and so does the program."""

__version__ = "0.3.0"
