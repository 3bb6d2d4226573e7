"""The workers of one site and the plan that they execute: pure rules, driven by `chaosd.worker_group`."""
