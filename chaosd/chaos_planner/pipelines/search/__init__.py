"""What to do when workers are lost: restart them, reroute their work, or form other pipelines.

`planner` works out one candidate a policy, scores them and gives its reason (`decisions` has the types). `reroute`
finds hosts for the work of lost workers; `partition` looks for other pipelines with `search`, which uses `splits`,
`joint` and `bounds`, and `uneven` where devices differ in speed. `equal_devices` lays out symmetric plans without a
search; `cache` keeps decisions made ahead of the failure.
"""
