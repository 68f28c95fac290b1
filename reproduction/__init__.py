"""Experiments as data, the verdicts on them, and their report."""
