"""A worker of a site that has several: the part of a plan that it executes. Driven by `Coordinator.parallelize` and
`Coordinator.replicate`; decides nothing of the plan.

Two ways in: `model.py` trains a model that is cut into layers, by streams of instructions; `replicas.py` and
`replicated.py` train whole copies in a script's own loop. Below both: a worker's life under orders (`life.py`), its
line to the controller (`line.py`), groups and the messages between workers (`groups.py`, `channels.py`), sums in the
one order that no plan changes (`summing.py`), state that moves (`moving.py`). A step of layers: `together.py` runs
`interpreter.py` over `layers.py`. In a run of institutions: `vectors.py`, `others.py`. Several devices a worker:
`lanes.py`, `pieces.py`, `sharded.py`, `tensor_parallel.py`.
"""
