"""Entropy-regularised MDPs: the actor-critic and its known cases."""
