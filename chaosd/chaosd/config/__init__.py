"""The daemon's configuration: what can be set, how it is checked, how the file is written and read."""
