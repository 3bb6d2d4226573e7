"""The training process beside the daemon: the socket it says hello on, its session, the shared memory they exchange.

Driven by the worker's messages, and by the driver with what the site's machine tells it. Decides whether bytes and
sizes of a worker can be right; whether it is taken, and when it trains, the machine decides.
"""
