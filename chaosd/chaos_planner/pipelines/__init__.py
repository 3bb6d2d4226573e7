"""Plans inside a site with several devices: who computes which layers, and what to do when some fail.

Driven by `chaosd run`, which carries plans out, by `chaosd plan`, `chaosd simulate` and benchmarks. Each folder uses
those above it only: `facts`, `plans`, `costs`, `streams`, `estimates`, `transfers`, `search`, `simulators`. Import from
the modules.

Source: Chameleon and Odyssey (planner, colouring, formulas), ReCycle (rerouting), FlashRecovery and FlexiTrain
(simulators); each module names its part.
"""
