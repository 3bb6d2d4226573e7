"""The scheduler: the role of the agreement's leader. It decides every change of the roster, one at a time.

`machine.py` is the role itself and the only one that acts; its parts look at what the site knows (`facts.py`) and
return what is to be done, each with its reason: `failures.py` (who and what is lost), `progress.py` (what stands
still), `round_resolution.py` (which result of the running round stands after a failure), `restore_point.py` (from which
state a run goes on that nobody has), `voters.py` (who votes, who schedules), `admission.py` (what sites ask for).
`running.py` drives the negotiations of `negotiation/`; `proposals.py` makes their commands, `proposer.py` gives them to
the agreement. `reports.py` is what the sites have said of themselves, `pace.py` how fast things go here.
"""
