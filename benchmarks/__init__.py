"""One module per figure of the project: `python -m benchmarks --list`."""
