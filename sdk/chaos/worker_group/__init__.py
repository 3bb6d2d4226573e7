"""A worker of a site that has several: the part of a plan that it executes. Driven by `Coordinator.parallelize` and
`Coordinator.replicate`; decides nothing of the plan.

Two ways in: `model.py` trains a model that is cut into layers, by streams of instructions; `replicas.py` and
`replicated.py` train whole copies in a script's own loop. Both live under the controller's orders (`life.py`) and are
one session for the script (`session.py`, `summed.py`; in a run of institutions `others.py`). Below them, from above:
`compute` executes a step, `exchange` carries what workers say, `chain` is what is trained.
"""
