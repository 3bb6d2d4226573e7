"""The transfer of state with bytes, as a source and as a joiner: what `chaos_protocols.state.transfer` decides, done.

A source streams blocks straight from the arena; a joiner receives them in their place and hashes them on a thread.
Driven by the driver, and by frames of the bulk streams from 1 on. Decides nothing about whom to serve.
"""
