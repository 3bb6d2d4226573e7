"""Healing inside a site: facts, execution plans, instruction streams, estimator, planner, restorer, simulators.

Pure: no I/O, no clock, no randomness of its own (the profiler, which runs a real model, is the exception). Import from
the modules: `facts` and `plans` hold the types that all others share.
"""
