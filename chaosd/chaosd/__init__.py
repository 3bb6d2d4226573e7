"""Chaos: institutions train one model together."""
