"""Real processes under fire: `python -m tests.soak`; its short form is tests/integration/test_soak.py."""
