"""Properties are judged by what they say, never by how fast the machine is: hypothesis counts examples, not seconds."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
