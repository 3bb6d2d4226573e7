"""What a worker computes: the loop that executes its stream of a step (`interpreter`), on which samples (`data`), with
random numbers that do not depend on who draws them (`seeding`), and what a layer takes, measured (`measuring`).

Decides nothing: what is computed, and in which order, says the plan. Driven by `session`, `together` and `model`.
"""
