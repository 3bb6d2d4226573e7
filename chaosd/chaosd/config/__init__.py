"""The daemon's configuration: what can be set, how it is checked, how the file is written and read.

Decides which values are allowed and which of file, flag and context counts. Driven by the commands (`chaosd.cli`), and
by the daemon at its start and at SIGHUP.
"""
