"""The rules by which institutions train one model together, as machines without I/O, clocks or chance of their own.

It decides what a site does when something happens to it: `site.py` holds the machine of a whole site, `SiteMachine`,
which takes `events.py` one at a time and answers with `effects.py`; `inbound.py` says whose message counts,
`causes.py` why something stands. Driven by the daemon (`chaosd.driver`) and, from seeds, by the simulator
(`tests/simulator`). The rules have numbers in docs/protocols/spec.md.
"""
