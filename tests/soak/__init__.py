"""Real processes under fire; `python -m tests.soak`, not collected by the test runner."""
