"""The controller of a site's workers: starts them, drives `chaos_protocols.worker_group`, asks the planner.

`controller.py` is the loop of events and effects; decides nothing. What goes out and comes in: `processes.py`,
`lines.py`, `memory.py`; to the site's daemon `run_line.py`; to people `board.py`, `door.py`, `history.py`. The planner:
asked on threads (`planner_thread.py`), its choice in the protocols' words (`planning.py`, `ways.py`, `lower.py`), what
steps really took fed back to it (`facts.py`, `feedback.py`). Pictures: `timed_steps.py`, `timeline_picture.py`,
`timeline_file.py`.
"""
