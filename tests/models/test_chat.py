"""Chat templates in their process: the rendered prompts, and the end of templates that would not end."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from corepipe import sandbox
from corepipe.errors import UserError
from corepipe.models.text import chat
from corepipe.models.text.chat import ChatTemplate
from tests.servers import PATIENCE_SECONDS

ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
LOOP = "{{% set n = namespace(s='abcd') %}}{{% for i in range(60) %}}{0}{{% endfor %}}"
ON_DEMAND = "{% if messages[0].content == 'boom' %}" + ENDLESS + "{% endif %}{{ messages[0].content }}"


def says(text: str) -> list[dict[str, object]]:
    return [{"role": "user", "content": text}]


def child(template: ChatTemplate) -> psutil.Process:
    assert template._renderer is not None
    return psutil.Process(template._renderer.process.pid)


def test_one_process_renders_and_ends_with_its_template() -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.role }}: {{ m.content }}{{ end }}{% endfor %}")
    assert template._renderer is None
    assert (
        template.render([*says("h\u00e9"), *says("\U0001f600")], {"end": "."})
        == "user: h\u00e9.user: \U0001f600."
    )
    process = child(template)
    assert template.render([], {}) == ""
    assert child(template).pid == process.pid
    del template
    gc.collect()
    assert not process.is_running()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{{ raise_exception('roles must\nalternate') }}", "refuses these messages: roles must alternate"),
        ("{{ messages[0].content + 'x' }}", "refuses these messages"),
        ("{{ messages[9]['role'] }}", "refuses these messages"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recursion"),
        ("{{ raise_exception('\x1b[31m') }}", r"\\x1b\[31m"),
    ],
)
def test_what_a_template_refuses_names_the_field_and_harms_nothing(text: str, why: str) -> None:
    template = ChatTemplate(text)
    template.check()
    with pytest.raises(UserError, match=why) as caught:
        template.render([{"role": "user", "content": ["not", "text"]}], {})
    assert caught.value.param == "messages"
    assert caught.value.message.isprintable()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{% for %}", "is not valid"),
        ("{{ 'a' * 10**10 }}", "too much memory"),
        ("{{ ''.__class__.__mro__ }}", "is refused: access to attribute '__class__'"),
        (ENDLESS, r"takes more than 0\.2 s of processor time"),
        ("{{ '%999999999d' % 3 }}{{ '%999999999d' % 3 }}", "takes (more|too)"),
        (LOOP.format("{% set n.s = n.s ~ n.s %}"), "takes (more|too)"),
        (LOOP.format("{% set n.s = [n.s, n.s] %}") + "{{ n.s }}", "takes (more|too)"),
        ("{% for i in range(99999) %}" + "x" * 999 + "{% endfor %}", "is refused: it wrote more"),
    ],
)
def test_a_hostile_template_is_refused_before_anybody_asks(text: str, why: str) -> None:
    with pytest.raises(UserError, match=f"the chat template .*{why}"):
        ChatTemplate(text, cpu_seconds=0.2).check()


def test_a_template_that_hangs_on_demand_ends_its_process_and_the_next_one_works() -> None:
    template = ChatTemplate(ON_DEMAND, cpu_seconds=0.2)
    template.check()
    first = child(template)
    with pytest.raises(UserError, match=r"takes more than 0\.2 s of processor time") as caught:
        template.render(says("boom"), {})
    assert caught.value.param == "messages"
    assert not first.is_running()
    assert template.render(says("fine"), {}) == "fine"


def test_a_process_that_was_killed_or_stopped_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    template = ChatTemplate("{{ messages[0].content }}")
    template.check()
    child(template).kill()
    with pytest.raises(UserError, match="ended the process that works on it"):
        template.render(says("a"), {})
    assert template.render(says("b"), {}) == "b"
    monkeypatch.setattr(chat, "ANSWER_SECONDS", 0.2)
    stopped = child(template)
    stopped.send_signal(signal.SIGSTOP)
    with pytest.raises(UserError, match="a process that gets no processor time"):
        template.render(says("c"), {})
    assert not stopped.is_running()


def test_a_process_that_gets_on_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    template = ChatTemplate("{{ messages[0].content }}")
    template.check()
    slow, looks = child(template), list[int]()

    def spent(_: object) -> float:
        looks.append(1)
        if len(looks) == 5:
            slow.resume()
        return float(len(looks))

    monkeypatch.setattr(sandbox.SandboxProcess, "_spent", spent)
    monkeypatch.setattr(chat, "ANSWER_SECONDS", 0.05)
    slow.suspend()
    assert template.render(says("a"), {}) == "a"


def test_threads_take_turns() -> None:
    template, found = ChatTemplate("{{ messages[0].content }}"), dict[int, str]()
    threads = [
        threading.Thread(target=lambda i=i: found.update({i: template.render(says(str(i)), {})}))
        for i in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {i: str(i) for i in range(20)}


@pytest.mark.parametrize("content", ["\ud800", object()])
def test_what_is_no_text_is_refused(content: object) -> None:
    with pytest.raises(UserError, match="cannot be rendered") as caught:
        ChatTemplate("{{ messages[0].content }}").render([{"content": content}], {})
    assert caught.value.param == "messages"


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads /proc")
def test_the_process_knows_no_secret_and_can_open_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COREPIPE_API_KEY", "canary")
    template = ChatTemplate("{{ messages[0].content }}")
    template.check()
    home = Path(f"/proc/{child(template).pid}")
    assert b"canary" not in (home / "environ").read_bytes()
    assert "Max open files            0 " in (home / "limits").read_text()
    files = {str(file.readlink()) for file in (home / "fd").iterdir()}
    assert len([name for name in files if name.startswith("socket:")]) == 1, "its own end and no listener"


def test_it_ends_with_its_parent() -> None:
    code = (
        "import os; from corepipe.models.text.chat import ChatTemplate; t = ChatTemplate('x');"
        "t.render([], {}); print(t._renderer.process.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    renderer = int(ended.stdout)
    if psutil.pid_exists(renderer):
        psutil.Process(renderer).wait(PATIENCE_SECONDS)
