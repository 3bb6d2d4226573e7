"""Every byte layout that leaves a process, and the rule by which it may change (docs/decisions/0015).

`versions` says which protocol versions this software speaks; `handshake` how two daemons find out which one they share;
`probe` what link measurements and model descriptions look like; `former` how what an older version has stored is read.
Layouts only: nothing here decides, does I/O or knows a machine.
"""
