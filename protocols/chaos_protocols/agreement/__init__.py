"""What the sites of a run agree on, as one site knows it.

It decides what the run is: who is a member, which links there are, from which round on who averages with whom along
which trees (`roster.py`, `views.py`), and which commands alone may change that, at every site in the same way
(`commands.py`). That all agree on the same commands in the same order is the matter of `raft/`; `chain.py` finds out
where they do not. `RosterReplica` (`replica.py`) is this site's copy of it. Driven by `SiteMachine`; commands are made
by the scheduler.
"""
