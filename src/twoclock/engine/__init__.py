"""How steps are walked: lanes of methods × seeds, their random keys, the compiled loop."""
