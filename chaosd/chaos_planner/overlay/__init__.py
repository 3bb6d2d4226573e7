"""Plans between sites: who sends a joiner the state, and along which trees the sites average.

Reading order: `shards`, `policies`; `graph`, `baselines`, `packing`, `trees`.
"""
