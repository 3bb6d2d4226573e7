"""The daemon's local API on a unix socket: server, the operations behind it, the schema it answers in, its client.

Driven by the commands and by `chaosd page`. Decides nothing: what is wanted becomes an event of the site's
machine or a change of the daemon's lists, what is told is read off the machines.
"""
