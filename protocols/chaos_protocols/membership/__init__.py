"""How a site belongs to the run: joining, taking part, catching up, leaving, and what it asks the scheduler for.

It decides what this site is in the run (`own.py`), whether a worker is taken (`hello.py`), whether it gives something
to a round or nothing (`absence.py`, `skips.py`, `join_hold.py`), and what its user is told when nothing moves
(`pause.py`). `Participation` compares the committed roster with what this site has, at every event and beat, and
drives all others; what it wants of the scheduler it asks again until the roster shows it (`asking.py`). Driven by
`SiteMachine`.
"""
