"""Bilevel, minimax and composite problems from a user's losses."""
