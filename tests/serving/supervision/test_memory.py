from __future__ import annotations

from pathlib import Path

import pytest

from corepipe.serving.supervision.memory import LOOK_SECONDS, MemoryGuard

MIB = 1 << 20


def group(folder: Path, current: int, inactive: int, limit: str = str(100 * MIB)) -> MemoryGuard:
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{current * MIB}\n")
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {inactive * MIB}\nactive_file 7\n")
    return MemoryGuard(folder)


@pytest.mark.parametrize(("current", "inactive", "full"), [(89, 0, False), (90, 0, True), (99, 10, False)])
def test_page_cache_that_can_go_does_not_count(
    current: int, inactive: int, full: bool, tmp_path: Path
) -> None:
    assert group(tmp_path, current, inactive).full(0.0) is full


def test_a_look_is_good_for_a_while(tmp_path: Path) -> None:
    guard = group(tmp_path, 95, 0)
    assert guard.full(10.0)
    group(tmp_path, 20, 0)
    assert guard.full(10.0 + LOOK_SECONDS / 2)
    assert not guard.full(10.0 + LOOK_SECONDS)


def test_without_a_limit_nothing_is_full(tmp_path: Path) -> None:
    assert not MemoryGuard(tmp_path / "none").full(0.0)
    assert not group(tmp_path, 10**6, 0, limit="max").full(0.0)
