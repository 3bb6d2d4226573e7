"""The training process beside the daemon: the socket it says hello on, its session, the shared memory they exchange."""
