"""An engine's LoRA adapters: slots, the end of an adapter, and the keys of the prefix cache."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from corepipe.engine.loop.adapters import AdapterParts
from corepipe.engine.loop.driver import Driver
from corepipe.engine.lora import AdapterRef, AdapterReport, LoadAdapter, UnloadAdapter, read_lora_module
from corepipe.engine.messages import Abort, Submit
from corepipe.errors import UserError
from corepipe.models.adapters.adapter import Adapter
from corepipe.scheduler.request import Request, first_key, next_key
from tests.engine.engine_support import deployment, run, submit


@dataclass
class Table:
    """The slots of a replica: the digest in each."""

    slots: dict[int, str] = field(default_factory=dict)

    def load(self, slot: int, adapter: Adapter) -> None:
        assert slot not in self.slots, "the slot is free"
        self.slots[slot] = adapter.digest

    def unload(self, slot: int) -> None:
        del self.slots[slot]


def read(path: Path) -> Adapter:
    """The adapter whose content is the path's last part before a point."""
    if path.name == "broken":
        raise UserError("broken: no adapter")
    return Adapter(path.name.partition(".")[0], 4, {})


def driven(replicas: int = 1, most: int = 2, slots: int = 4) -> tuple[Driver, list[Table]]:
    tables = [Table() for _ in range(replicas)]
    parts = AdapterParts(read, tables, most, slots)
    return Driver(replace(deployment(replicas), adapters=parts)), tables


def load(driver: Driver, content: str, **more: str) -> AdapterReport:
    return driver.load_adapter(LoadAdapter(content, f"/a/{content}", **more))


def asked(name: str, adapter: str | None, prompt: int = 40) -> Submit:
    ref = None if adapter is None else AdapterRef(adapter, adapter)
    return structs.replace(submit(name, prompt=prompt, max_tokens=3), adapter=ref)


def test_every_replica_loads_it_and_requests_find_it() -> None:
    driver, tables = driven(replicas=2)
    report = load(driver, "a")
    assert (report.digest, report.rank, report.error) == ("a", 4, "")
    assert [table.slots for table in tables] == [{0: "a"}, {0: "a"}]
    driver.handle(asked("r", "a"))
    (request,) = (one for replica in driver.replicas for one in replica.scheduler.requests)
    assert request.adapter == 0
    assert [one.finish_reason for one in run(driver)][-1] == "length"


def test_what_is_not_loaded_is_refused() -> None:
    driver, _ = driven()
    driver.handle(asked("r", "a"))
    (refused,) = driver.turn()
    assert (refused.error_kind, refused.error) == ("invalid", "the LoRA adapter is not loaded any more")
    plain = Driver(deployment())
    plain.handle(asked("r", "a"))
    assert "--enable-lora" in str(plain.turn()[0].error)
    plain.handle(LoadAdapter("a", "/a/a"))
    assert "--enable-lora" in plain.adapter_reports()[0].error


def test_a_request_under_way_keeps_its_adapter() -> None:
    driver, (table,) = driven()
    load(driver, "a")
    driver.handle(asked("r", "a"))
    driver.submit()
    driver.handle(UnloadAdapter("a"))
    assert driver.adapter_reports() == []
    assert table.slots == {0: "a"}
    run(driver)
    driver.adapter_reports()
    assert table.slots == {}
    driver.handle(asked("s", "a"))
    assert driver.turn()[0].error_kind == "invalid"


def test_an_aborted_request_keeps_it_until_its_batch_is_back() -> None:
    driver, (table,) = driven()
    load(driver, "a")
    driver.handle(asked("r", "a"))
    driver.submit()
    driver.handle(Abort(["r"]))
    driver.handle(UnloadAdapter("a"))
    driver.adapter_reports()
    assert table.slots == {0: "a"}
    while driver.busy:
        driver.turn()
    driver.adapter_reports()
    assert table.slots == {}


def test_a_name_that_is_loaded_again_takes_the_place_of_its_old_content() -> None:
    driver, (table,) = driven(most=1)
    load(driver, "a")
    driver.handle(asked("r", "a"))
    driver.submit()
    assert load(driver, "b", replaces="a").error == ""
    assert sorted(table.slots.values()) == ["a", "b"]
    run(driver)
    driver.adapter_reports()
    assert [*table.slots.values()] == ["b"]


def test_there_are_no_more_than_the_flag_says() -> None:
    driver, _ = driven(most=2)
    load(driver, "a"), load(driver, "b")
    report = load(driver, "c")
    assert (report.retry, "--max-loras 2" in report.error) == (True, True)
    assert load(driver, "a").error == "", "the same content takes no further place"


def test_content_that_has_changed_is_told() -> None:
    driver, (table,) = driven()
    report = load(driver, "a", digest="b")
    assert (report.digest, "have changed" in report.error) == ("b", True)
    assert table.slots == {}


def test_an_adapter_is_read_beside_the_loop() -> None:
    woken = threading.Event()
    table = Table()
    parts = AdapterParts(read, [table], 2, 4)
    driver = Driver(replace(deployment(), adapters=parts), on_compiled=woken.set)
    for name in ("a", "broken"):
        driver.handle(LoadAdapter(name, f"/a/{name}"))
    reports: list[AdapterReport] = []
    while len(reports) < 2:
        woken.wait()
        reports += driver.adapter_reports()
    assert [(one.name, one.error) for one in reports] == [("a", ""), ("broken", "broken: no adapter")]
    assert table.slots == {0: "a"}
    driver.close()


@given(st.lists(st.tuples(st.sampled_from("LUSA"), st.sampled_from("abc")), max_size=40))
def test_any_order_of_events_leaves_what_is_loaded_and_what_is_used(events: list[tuple[str, str]]) -> None:
    """After every event the slots hold what was loaded and not unloaded, and what requests under way have."""
    driver, (table,) = driven(most=3, slots=6)
    wanted: set[str] = set()
    for number, (event, name) in enumerate(events):
        if event == "L":
            load(driver, name)
            wanted.add(name)
        elif event == "U":
            driver.handle(UnloadAdapter(name))
            wanted.discard(name)
        elif event == "S" and name in wanted:
            driver.handle(asked(str(number), name))
        else:
            driver.turn()
        driver.adapter_reports()
        used = {one.adapter_key for one in driver.replicas[0].scheduler.requests}
        assert wanted | used <= set(table.slots.values())
        assert len(set(table.slots.values())) == len(table.slots)
    run(driver)
    driver.adapter_reports()
    assert set(table.slots.values()) == wanted


def test_blocks_belong_to_an_adapter() -> None:
    """A prompt finds what its own adapter has computed, and nothing of another one or of the model."""
    driver, _ = driven(most=3)
    load(driver, "a"), load(driver, "b")
    cached = {}
    for number, adapter in enumerate((None, "a", "b", None, "a", "b")):
        driver.handle(asked(str(number), adapter))
        cached[number] = max(output.cached for output in run(driver))
    assert [cached[number] for number in range(3)] == [0, 0, 0]
    assert all(cached[number] > 0 for number in range(3, 6))


@given(st.text(max_size=20), st.text(max_size=20), st.text("0123456789abcdef", min_size=1, max_size=8))
def test_no_salt_stands_for_an_adapter(salt: str, other: str, adapter: str) -> None:
    assert first_key(salt, adapter) != first_key(other)
    assert (first_key(salt, adapter) == first_key(other, adapter)) == (salt == other)


def test_keys_of_requests_without_an_adapter_are_what_they_were() -> None:
    plain, adapted = (Request("a", range(32), 1, cache_salt="s", adapter_key=key) for key in ("", "d"))
    assert plain.block_key(0, 16) == next_key(first_key("s"), range(16)) != adapted.block_key(0, 16)


@pytest.mark.parametrize(
    "text", ["sql=/a", '{"name": "sql", "path": "/a"}', ' {"name":"sql","path":"/a","base_model_name":"m"}']
)
def test_a_module_is_read_in_vllms_forms(text: str) -> None:
    module = read_lora_module(text)
    assert (module.name, module.path) == ("sql", "/a")


@pytest.mark.parametrize(
    "text",
    ["", "sql", "=/a", "sql=", "../x=/a", ".x=/a", "a/b=/a", "a\0=/a", '{"name": "sql"}', "{", '{"name": 1}'],
)
def test_other_modules_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"NAME=PATH|JSON|Object|Expected|Input"):
        read_lora_module(text)
