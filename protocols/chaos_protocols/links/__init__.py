"""This site's links: which it wants to have, which it was told to make and measure, and what is sent over them.

It decides whom to dial and when a link is dead (`liveness.py`, `silence.py`), which links the roster and the operator
want (`desired.py`), which of the scheduler's orders are obeyed (`orders.py`), by which way a message travels
(`router.py`, `link_state.py`), in whose name (`naming.py`), and how fast a link is, from what it carries (`rates.py`,
`sent_rates.py`). `Network` puts them together. Driven by `SiteMachine` with what the transport reports, and by its
timers.
"""
