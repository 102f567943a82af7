"""What holds for every test: none fails because the machine has something else to do."""

from __future__ import annotations

import httpx
from hypothesis import HealthCheck, settings

from tests.servers import PATIENCE_SECONDS

settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

for part in ("connect", "read", "write", "pool"):  # where httpx gives a server five seconds
    setattr(httpx._config.DEFAULT_TIMEOUT_CONFIG, part, PATIENCE_SECONDS)
