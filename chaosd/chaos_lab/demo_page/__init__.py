"""The page of `chaosd demo`: who looks at it may kill sites and have others join, and sees at the end what for.

`visit.py` decides which wish is carried out and when, `view.py` what is shown, `server.py` answers the browser.
Driven by the lab's run, which looks at the wishes between two steps of its script.
"""
