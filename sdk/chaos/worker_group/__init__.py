"""A worker of a site that has several: the part of a plan that it executes. Driven by `Coordinator.parallelize`."""
