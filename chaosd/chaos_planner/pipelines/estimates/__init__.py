"""How long a step of a plan takes, and how much memory each worker needs.

`timeline` and `memory` read the instruction streams and are exact under the model that they state; `estimator` puts
both together. `pipeline_times` and `evaluate` give the same times, bit for bit, for many plans or large ones at once.
"""
