"""What a daemon keeps: journal (durable), checkpoints, event history, the remembered vector, the log of rounds.

Driven by the driver: an effect says what is to be on the disk before the next one is carried out. Each file is checked
when it is read again; what is damaged is named, never guessed. What is kept, and when, the site's machine decides.
"""
