"""Exact answers by closed forms."""
