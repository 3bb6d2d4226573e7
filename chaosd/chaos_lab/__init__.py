"""The lab: any number of sites on this machine, with shaped links and a script of what happens to them.

`scenario.py` reads the script, `processes.py` runs the sites, `actions.py` carries the script out, `watching.py` sees
what comes of it, `table.py` shows it, `report.py` says what held.
"""
