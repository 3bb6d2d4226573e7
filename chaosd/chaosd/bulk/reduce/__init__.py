"""The averaging of rounds with bytes."""
