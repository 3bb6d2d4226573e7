"""The averaging of rounds with bytes: what the pure machines of `chaos_protocols.rounds.reduce` decide, done.

`engine` executes their effects on memory (`memory`, `results`, `own_part`); numbers travel as `coded` and `encodings`
say, and within what `bounds` and `centre` allow. Driven by the driver, and by frames of bulk stream 0. Decides nothing
about rounds: which one is open, and with whom, comes from the site's machine.
"""
