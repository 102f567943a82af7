"""The resources that control groups leave of a host, on trees of files as the kernel shows them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from corepipe.engine.assembly.host_limits import HostCpus, host_cpus, host_memory


@pytest.fixture(autouse=True)
def sixty_four(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(64)))


def tree(root: Path, own: str, files: dict[str, str]) -> HostCpus:
    """Finds the limits where /proc/self/cgroup contains `own` and below /sys/fs/cgroup are these files."""
    root.mkdir(exist_ok=True)
    (root / "own").write_text(own)
    for name, text in files.items():
        file = root / "mount" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    return host_cpus(root / "own", root / "mount")


def version_1(group: str, quota: int, period: int = 100_000, controllers: str = "cpu") -> dict[str, str]:
    return {
        f"{controllers}/{group}/cpu.cfs_quota_us": str(quota),
        f"{controllers}/{group}/cpu.cfs_period_us": str(period),
    }


@pytest.mark.parametrize(
    ("quota", "count"),
    [
        ("200000 100000", 2),
        ("150000 100000", 1),
        ("399999 100000", 3),
        ("1000 100000", 1),
        ("25000 5000", 5),
        ("6400000 100000", 64),
        ("12800000 100000", 64),
        ("max 100000", 64),
        ("0 0", 64),
        ("", 64),
        ("words", 64),
    ],
)
def test_the_quota_of_a_container(quota: str, count: int, tmp_path: Path) -> None:
    cpus = tree(tmp_path, "0::/\n", {"cpu.max": quota})
    assert cpus.count == count
    assert (cpus.quota is None) == (count == 64)


def test_the_least_of_all_above_counts(tmp_path: Path) -> None:
    own = "0::/kubepods.slice/pod.slice/container.scope\n"
    pod = "kubepods.slice/pod.slice"
    for where, count in [(f"{pod}/container.scope", 8), (pod, 5), ("kubepods.slice", 3)]:
        assert tree(tmp_path, own, {f"{where}/cpu.max": f"{count * 100_000} 100000"}).count == count
    assert tree(tmp_path, own, {f"{pod}/container.scope/cpu.max": "max 100000"}).count == 3
    assert tree(tmp_path, own, {"kubepods.slice/other/cpu.max": "100000 100000"}).count == 3, "not above"


def test_version_1(tmp_path: Path) -> None:
    own = "4:memory:/other\n3:cpu,cpuacct:/docker/abc\n1:name=systemd:/\n"
    assert tree(tmp_path / "none", own, version_1("docker/abc", -1)).count == 64
    assert tree(tmp_path / "link", own, version_1("docker/abc", 250_000)).count == 2
    both = "cpu,cpuacct"
    assert tree(tmp_path / "both", own, version_1("docker", 700_000, controllers=both)).count == 7
    assert tree(tmp_path / "memory", own, version_1("other", 100_000)).count == 64, "the memory's group"


def test_a_path_that_is_not_mounted_here(tmp_path: Path) -> None:
    """Without a namespace of its own, a container sees the host's path, and its own group as the root."""
    assert tree(tmp_path / "1", "2:cpu:/docker/abc\n", version_1(".", 400_000)).count == 4
    assert (
        tree(tmp_path / "2", "0::/system.slice/docker-abc.scope\n", {"cpu.max": "300000 100000"}).count == 3
    )
    assert tree(tmp_path / "3", "0::/../../elsewhere\n", {"cpu.max": "300000 100000"}).count == 3


def test_version_2_beside_version_1(tmp_path: Path) -> None:
    own = "1:cpu:/a\n0::/b\n"
    files = {"unified/b/cpu.max": "600000 100000", **version_1("a", 900_000)}
    assert tree(tmp_path, own, files).count == 6


def test_nothing_to_read(tmp_path: Path) -> None:
    assert host_cpus(tmp_path / "no", tmp_path / "nothing") == HostCpus(64)
    assert tree(tmp_path, "", {"cpu.max": "100000 100000"}) == HostCpus(64)


def test_it_is_said_what_limits() -> None:
    assert str(HostCpus(64)) == "64 threads"
    assert str(HostCpus(1)) == "1 thread"
    assert str(HostCpus(1, 1.5)) == "1 thread (a control group allows 1.5 CPUs)"
    assert str(HostCpus(2, 2.0)) == "2 threads (a control group allows 2 CPUs)"


def test_this_machine_has_some() -> None:
    assert host_cpus().count >= 1


def test_a_containers_limit_counts(tmp_path: Path) -> None:
    everything = host_memory(tmp_path / "none")
    limit = tmp_path / "memory.max"
    limit.write_text("max\n")
    assert host_memory(limit) == everything
    limit.write_text("1048576\n")
    assert host_memory(limit) == 1 << 20
    limit.write_text(str(1 << 62))
    assert host_memory(limit) == everything
