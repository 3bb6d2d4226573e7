"""`chaosd doctor`: looks at everything that commonly keeps a site from working, and says the remedy.

`site.py` looks at this machine, `places.py` at what the configuration names besides the data folder, `peers.py` at who
answers where, `asked.py` at one link from both ends; `check.py` says what a check has found. Driven by the command
alone. It changes nothing, and asks a daemon that runs like any command.
"""
