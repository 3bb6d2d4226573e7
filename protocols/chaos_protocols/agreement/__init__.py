"""What the sites of a run agree on, as one site knows it."""
