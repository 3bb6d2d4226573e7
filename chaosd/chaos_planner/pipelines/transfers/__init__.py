"""The state that moves when a plan replaces another: who takes which place, who sends what, how long it takes.

`transition` answers for a whole site at the planner's pace, `restorer` gives the exact transfers, byte range by byte
range. Both need the solver (`chaos_planner.solvers`).
"""
