"""The controller of a site's workers: starts them, drives `chaos_protocols.worker_group`, asks the planner."""
