"""From an execution plan to one instruction stream a worker, proved free of deadlock.

`instructions` are the words and the proof, `placement` decides where rerouted passes stand among a host's own,
`compile` puts the streams together. Driven by estimates and simulators, later by the runtime, all of which read these
streams.
"""
