from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

import corepipe
from corepipe.errors import UserError
from corepipe.models.tokenizer import Tokenizer
from corepipe.neuron.program import SamplingBatch, StepInputs
from corepipe.serving.llm import LLM, RequestOutput, SamplingParams
from tests.null_executor import NullExecutor
from tests.serving.engine_support import deployment

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
EOS = len(ALPHABET)
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
GREEDY = SamplingParams(temperature=0.0, max_tokens=12)


def byte_tokenizer() -> Tokenizer:
    """One token a byte, and `<eos>`."""
    vocab = {character: i for i, character in enumerate([*ALPHABET, "<eos>"])}
    backend = Backend(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<eos>"])
    return Tokenizer(backend, {"eos_token": "<eos>"}, TEMPLATE)


class Saying(NullExecutor):
    """Whatever is asked, the token at position p of a sequence is the p-th of `text`, over and over."""

    def __init__(self, text: list[int]) -> None:
        super().__init__(EOS + 1)
        self._text = np.array(text, np.int32)

    def _tokens(self, inputs: StepInputs, sampling: SamplingBatch) -> npt.NDArray[np.int32]:
        drawn = self._text[sampling.position % len(self._text)]
        return np.where(sampling.chosen >= 0, sampling.chosen, drawn).astype(np.int32)


def make(text: list[int] | str = "0123456789", replicas: int = 1) -> LLM:
    tokenizer = byte_tokenizer()
    ids = tokenizer.encode(text) if isinstance(text, str) else text
    return LLM.of(deployment(replicas, executor=lambda: Saying(ids)), tokenizer)


@pytest.fixture
def llm() -> Iterator[LLM]:
    with make() as made:
        yield made


def test_one_prompt_gives_one_answer(llm: LLM) -> None:
    (output,) = llm.generate("abc", GREEDY)
    assert output.text == "345678901234"
    assert output.finish_reason == "length"
    assert (output.prompt, len(output.prompt_token_ids), len(output.token_ids)) == ("abc", 3, 12)
    assert output.device is not None
    assert output.device.total_ms > 0


def test_answers_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    prompts = ["x" * (1 + i % 7) for i in range(50)]
    outputs = llm.generate(prompts, [SamplingParams(temperature=0, max_tokens=1 + i % 5) for i in range(50)])
    for i, output in enumerate(outputs):
        assert output.text == "0123456789012"[1 + i % 7 :][: 1 + i % 5]


def test_prompts_may_be_token_ids(llm: LLM) -> None:
    assert [o.text for o in llm.generate([1, 2, 3], GREEDY)] == ["345678901234"]
    assert [o.text[0] for o in llm.generate([[1], [1, 2]], GREEDY)] == ["1", "2"]
    assert llm.generate([], GREEDY) == []


@pytest.mark.parametrize(("include", "text"), [(False, "3456"), (True, "345678")])
def test_a_stop_string_ends_the_text(llm: LLM, include: bool, text: str) -> None:
    params = SamplingParams(
        temperature=0, max_tokens=100, stop=["78", "never"], include_stop_str_in_output=include
    )
    (output,) = llm.generate("abc", params)
    assert (output.text, output.finish_reason) == (text, "stop")
    assert len(output.token_ids) == 6
    assert output.device is not None


def test_a_stop_string_that_the_last_token_may_begin_is_shown_at_the_end(llm: LLM) -> None:
    (output,) = llm.generate("abc", SamplingParams(temperature=0, max_tokens=2, stop="45"))
    assert (output.text, output.finish_reason) == ("34", "length")


def test_eos_ends_the_text_and_is_not_shown() -> None:
    with make([*byte_tokenizer().encode("01234567"), EOS]) as llm:
        (output,) = llm.generate("abc", SamplingParams(temperature=0, max_tokens=100))
        assert (output.text, output.finish_reason) == ("34567", "stop")
        assert output.token_ids[-1] == EOS
        (output,) = llm.generate("abc", SamplingParams(temperature=0, max_tokens=8, ignore_eos=True))
        assert (output.text, output.finish_reason) == ("3456701", "length")
        stops = byte_tokenizer().encode("5")
        (output,) = llm.generate("abc", SamplingParams(temperature=0, stop_token_ids=stops))
        assert (output.text, output.finish_reason) == ("34", "stop")


def test_characters_are_whole() -> None:
    with make("äöü€") as llm:
        (output,) = llm.generate("ab", SamplingParams(temperature=0, max_tokens=6))
        assert output.text == "öü\N{REPLACEMENT CHARACTER}"


def test_logprobs_where_asked_for(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=3, logprobs=2, prompt_logprobs=0)
    (output,) = llm.generate("abcd", params)
    assert [entry.token for entry in output.logprobs] == output.token_ids
    assert [entry.token for entry in output.prompt_logprobs] == output.prompt_token_ids[1:]
    (output,) = llm.generate("abcd", GREEDY)
    assert (output.logprobs, output.prompt_logprobs) == ([], [])


def test_chat_uses_the_template(llm: LLM) -> None:
    conversation = [{"role": "user", "content": "hello"}]
    (output,) = llm.chat(conversation, GREEDY)
    assert byte_tokenizer().decode(output.prompt_token_ids) == "user: hello\n"
    assert len(llm.chat([conversation, conversation], GREEDY)) == 2


def test_what_cannot_be_honoured_is_refused_and_the_rest_forgotten(llm: LLM) -> None:
    with pytest.raises(UserError, match="tokens"):
        llm.generate(["abc", "x" * 300], GREEDY)
    with pytest.raises(UserError, match="top_p"):
        llm.generate("abc", SamplingParams(top_p=0))
    with pytest.raises(UserError, match="2 prompts, but 1"):
        llm.generate(["a", "b"], [GREEDY])
    assert len(llm.generate("abc", GREEDY)) == 1


def test_max_tokens_none_fills_the_context(llm: LLM) -> None:
    (output,) = llm.generate("abc", SamplingParams(temperature=0, max_tokens=None))
    assert len(output.token_ids) == 256 - 3


def test_replicas_give_the_same_answers() -> None:
    def answers(replicas: int) -> list[str]:
        with make(replicas=replicas) as llm:
            return [output.text for output in llm.generate(["a" * i for i in range(1, 30)], GREEDY)]

    assert answers(1) == answers(3)


def test_the_package_exports_what_it_says() -> None:
    assert corepipe.LLM is LLM
    assert corepipe.SamplingParams is SamplingParams
    assert corepipe.RequestOutput is RequestOutput
    assert all(getattr(corepipe, name) for name in corepipe.__all__)
    with pytest.raises(AttributeError, match="nothing"):
        _ = corepipe.nothing


def test_importing_the_package_loads_none_of_it() -> None:
    code = (
        "import sys, corepipe; print([m for m in sys.modules if m.startswith('corepipe.') or m == 'numpy'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
