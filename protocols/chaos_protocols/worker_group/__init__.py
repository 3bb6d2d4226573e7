"""The workers of one site and the plan that they execute: pure rules.

They decide who belongs to the group (`crew.py`), which plan its workers execute and when a step counts for all of them
(`commit.py`, `tags.py`), which worker is taken for dead (`suspicion.py`) and with which step the others go on
(`stopping.py`), and what the group is in a run of institutions, where it is one worker of its site (`member.py`).
Driven by the controller (`chaosd.worker_group`), which starts, kills and tells processes as `events.py` asks.
"""
