"""A host in a process of its own, as on a machine of a fleet, but without Ray.

    python -m tests.serving.fleet.host_process CERTIFICATE [ASSEMBLE]

CERTIFICATE is a file with that of the front; ASSEMBLE makes engines without a model.  Prints one line of
JSON: the host's address and its certificate.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from corepipe.serving.fleet.host import Host
from corepipe.serving.fleet.identity import Identity
from corepipe.serving.supervision.engine_process import ENGINE_COMMAND
from tests.serving.supervision.test_client import child


async def main(trusted: str, command: tuple[str, ...]) -> None:
    identity = Identity.make("host")
    host = Host(identity.server(trusted), command)
    address, port = await host.listen("127.0.0.1")
    print(json.dumps({"address": address, "port": port, "certificate": identity.certificate}), flush=True)
    await host.ended.wait()
    await host.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]).read_text(), child(sys.argv[2]) if sys.argv[2:] else ENGINE_COMMAND))
