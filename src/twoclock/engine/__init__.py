"""Execution of a run: lanes of methods × seeds, their random keys, and the compiled loop."""
