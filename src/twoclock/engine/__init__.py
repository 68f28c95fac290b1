"""Running steps: lanes of methods × seeds, their random keys, the compiled loop."""
