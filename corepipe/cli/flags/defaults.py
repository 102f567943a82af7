"""What stands for flags that are left out, where that depends on the other flags."""

from __future__ import annotations

USERS = 8
"""Of a closed loop, where neither a rate, users nor a trace is given: no deployment is overrun."""

SIMULATED_REQUESTS = 500
SENT_REQUESTS = 100
"""Of a load test without a trace and without --duration."""

STAGE_SECONDS = 20.0
"""Of a sweep's stage, where --duration does not say."""

DOCUMENTS = 10
"""For each query of a load test that ranks."""
