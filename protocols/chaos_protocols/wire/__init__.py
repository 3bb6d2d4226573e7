"""Every byte layout that leaves a process, and the rule by which it may change (docs/decisions/0015).

`versions` says which protocol versions this software speaks; `handshake` how two daemons find out which one they
share; `control` and `bulk` what sites say, `worker` what a script and its daemon say; `probe` what link measurements
and model descriptions look like; `former` how what an older version has stored is read. Layouts only: it decides
nothing but what fits, does no I/O and knows no machine. Used by the machines, and by whoever encodes for them.
"""
