"""Defaults of flags that depend on the other flags."""

from __future__ import annotations

USERS = 8
"""Users of a closed loop, where neither a rate, users nor a trace is given: no deployment is overrun."""

SIMULATED_REQUESTS = 500
SENT_REQUESTS = 100
"""Requests of a load test without a trace and without --duration."""

STAGE_SECONDS = 20.0
"""Seconds of a stage of a sweep without --duration."""

DOCUMENTS = 10
"""Documents for each query of a load test that ranks."""
