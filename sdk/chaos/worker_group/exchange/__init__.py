"""What workers of a site say to each other and to their controller: the line to the controller (`line`, of a device
group `lane_lines`), groups of workers and channels between them, and what is built on these: gradients that are summed
in the one order that no plan changes (`summing`), state that moves (`moving`), what a script says (`notes`).

Driven by the worker's life (`life`), and by the loop that executes a step.
"""
