"""From checked settings to a server that replays: it loads no model, no tokenizer and no kernels."""

from __future__ import annotations

import uvloop

from corepipe.cli.output.common import errors
from corepipe.cli.start.ports import open_ports, other_ports, urls_of, warnings_of
from corepipe.engine.config import EngineConfig
from corepipe.errors import UserError
from corepipe.serving.api.app import create_app, serve
from corepipe.serving.api.cassettes.no_engine import NOTHING_LOADED, NoEngine
from corepipe.serving.api.cassettes.server_cassettes import ServerCassettes
from corepipe.serving.api.http.ports import ServerPort
from corepipe.serving.config import ServerConfig
from corepipe.version import __version__


def replay(engine: EngineConfig, server: ServerConfig) -> None:
    """Serves recorded answers until a signal.  Raises UserError."""
    listeners = open_ports(server)
    cassettes = ServerCassettes(server)
    assert cassettes.library is not None
    if not len(cassettes.library):
        raise UserError(f"--replay {server.replay}: holds no recorded exchange (*.yaml)", "replay")
    names = server.served_model_names or tuple(cassettes.library.models) or (engine.model,)
    engine = engine.model_copy(update={"model": names[0]})
    server = server.model_copy(update={"served_model_names": names})
    app = create_app(NoEngine(), None, engine, server, __version__, NOTHING_LOADED, cassettes)
    urls = urls_of(listeners, server)
    url = urls[ServerPort.PUBLIC]
    recorded = f"{len(cassettes.library)} recorded exchanges from {server.replay}"
    ready = f"ready to replay {recorded}: {url}/v1; Ctrl-C stops it"
    for line in [*warnings_of(server), ready, *other_ports(urls)]:
        errors().print(line)
    uvloop.run(serve(app, server, listeners))
