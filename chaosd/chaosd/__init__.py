"""Chaos: institutions train one model together. This package is a site's daemon, `chaosd`.

It decides nothing between sites: `daemon.py` puts the parts together, `driver.py` gives what happens to the site's
machine (`chaos_protocols.site`) and carries out what that asks for. Driven by the sockets of `transport` and `worker`,
by timers, and by the commands (`cli`, over `api`). docs/architecture.md says what the other modules are for.
"""
