"""How a site belongs to the run: joining, taking part, catching up, leaving, and what it asks the scheduler for."""
