"""The lab: any number of sites on this machine, with shaped links and a script of what happens to them.

`scenario.py` reads the script, `processes.py` runs the sites, `actions.py` carries the script out, `watching.py` sees
what comes of it, `table.py` shows it, `report.py` says what held. `daemon.py` is the daemon that its sites run: that of
`chaosd start` over the links of `links/`, with the routes of `api/server.py`. Driven by `cli.py`, the plug-in
behind `chaosd lab`. The daemon of an institution imports nothing of this package.
"""
