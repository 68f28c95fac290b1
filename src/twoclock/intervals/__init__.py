"""Error bars from one run: the numbers that a run keeps for them, their law, and when not to trust them."""
