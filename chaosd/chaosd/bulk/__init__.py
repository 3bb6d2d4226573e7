"""Bytes in bulk between sites: the streams and send queues, averaging (`reduce/`), state transfer (`replication/`).

Carries out what the pure machines of `chaos_protocols.rounds.reduce` and `chaos_protocols.state.transfer` decide.
Driven by the driver's effects, and by the frames that the transport hands to `streams`.
"""
