"""The durable agreement log: term, vote, entries, snapshot, incarnation; fsynced before anybody hears of them.

Driven by the driver (`Persist`, `NoteReached`), and read once when the daemon starts. A damaged file stops the daemon:
which votes and entries were promised cannot be guessed.
"""
