"""The papers' comparisons, played again from seeds: what policies make of failures.

`policies` plays failures against `adaptive` (the planner) and `baselines`, all measured by one `ruler`; `elastic` is
FlexiTrain's comparison, `recovery` FlashRecovery's. Driven by `chaosd simulate` and benchmarks.
"""
