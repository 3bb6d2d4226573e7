"""Properties are judged by what they say, never by how fast the machine is: hypothesis counts examples, not seconds.

The examples follow from the test, so that the same sources give the same verdict; `CHAOS_EXPLORE=1` draws others.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "untimed",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=not os.environ.get("CHAOS_EXPLORE"),
)
settings.load_profile("untimed")
