"""The rounds of one site: when one opens, what this site gives to it, what its worker is told.

It decides to which view of the roster a round belongs and whether this site may open it (`next_round.py`), what its
part is (`contribution.py`), in which order its worker gets the results (`delivery.py`), and when the states of the
sites are no longer the same (`state_check.py`). How the numbers are added up is the matter of `reduce/`.
`RoundMachine` (`machine.py`) is driven by `Participation`, by the worker's words and by what the reduce engine
reports.
"""
