"""`python -m chaosd` is `chaosd`."""

from __future__ import annotations

from chaosd.cli import main

if __name__ == "__main__":
    main()
