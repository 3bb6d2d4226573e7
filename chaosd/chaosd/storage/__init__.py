"""What a daemon keeps: journal (durable), checkpoints, event history, the remembered vector, the log of rounds."""
