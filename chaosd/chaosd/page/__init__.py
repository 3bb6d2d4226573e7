"""The operator's page: what `chaosd status`, `chaosd events` and the metrics say, live, in a browser beside it.

Decides who is let in (`access`, `gate`) and how often viewers are told (`feed`). Driven by the daemon's loop and by
browsers on loopback; what a button asks for goes the way of the same command.
"""
