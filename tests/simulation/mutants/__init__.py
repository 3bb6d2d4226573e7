"""Deliberate faults in the protocols, each of which the simulator's oracles must catch (`make mutants`)."""
