"""The training state of this site's worker: where it gets it from, where it lies besides, and to whom it gives it."""
