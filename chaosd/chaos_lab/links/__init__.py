"""Links that behave as the lab says: slow, late, cut, spoilt. The daemon's transport over such paths.

`shape.py` says how a link behaves, `shaper.py` delays what goes out, `link.py` is a link that obeys, `paths.py` knows
which shape holds for which site, `transport.py` is the transport that is given them. Driven by the lab's daemon, whose
routes say how a link is to be. The product imports none of this.
"""
