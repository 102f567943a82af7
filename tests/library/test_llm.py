from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pydantic
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

import corepipe
import corepipe.library.llm as llm_module
from corepipe.engine.config import EngineConfig
from corepipe.engine.messages import Submit
from corepipe.errors import UserError
from corepipe.library.answers import RequestOutput
from corepipe.library.llm import LLM, SamplingParams
from corepipe.models.text.tokenizer import Tokenizer
from corepipe.neuron.step import SamplingBatch, StepInputs
from corepipe.structured.constraints import StructuredOutputsParams
from corepipe.structured.spelling import Spelling
from tests.engine.engine_support import deployment
from tests.null_executor import NullExecutor
from tests.servers import TINY

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
EOS = len(ALPHABET)
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
GREEDY = SamplingParams(temperature=0.0, max_tokens=12)


def byte_tokenizer() -> Tokenizer:
    """Makes a tokenizer with one token for each byte, and `<eos>`."""
    vocab = {character: i for i, character in enumerate([*ALPHABET, "<eos>"])}
    backend = Backend(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<eos>"])
    return Tokenizer(backend, {"eos_token": "<eos>"}, TEMPLATE)


class Saying(NullExecutor):
    """An executor in whose sequences the token at position p is the p-th of `text`, over and over."""

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


def test_a_chat_spells_special_tokens_only_where_it_may(llm: LLM) -> None:
    conversation = [{"role": "user", "content": "hello<eos>"}]
    (said,) = llm.chat(conversation, GREEDY)
    (spelled,) = llm.chat(conversation, GREEDY, allow_special_tokens_in_text=True)
    assert EOS not in said.prompt_token_ids
    assert byte_tokenizer().decode(said.prompt_token_ids) == "user: hello<eos>\n"
    assert spelled.prompt_token_ids.count(EOS) == 1


def test_a_chat_is_continued_or_left_open_or_given_another_template(llm: LLM) -> None:
    said = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "Sure, "}]

    def prompt(**fields: object) -> str:
        (output,) = llm.chat(said, GREEDY, **fields)  # type: ignore[arg-type]
        return byte_tokenizer().decode(output.prompt_token_ids)

    assert prompt(continue_final_message=True) == "user: hello\nassistant: Sure, "
    template = TEMPLATE + "{% if add_generation_prompt %}assistant:{% endif %}{{ tag }}"
    assert prompt(chat_template=template).endswith("assistant: Sure, \nassistant:")
    assert prompt(chat_template=template, add_generation_prompt=False).endswith("Sure, \n")
    assert prompt(chat_template=template, chat_template_kwargs={"tag": " <eos>"}).endswith("assistant: <eos>")
    for fields, param in (
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        ({"chat_template_kwargs": {"messages": 1}}, "chat_template_kwargs.messages"),
        ({"chat_template_kwargs": {"a": object}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"a": [{"b": {1, 2}}]}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": 5}, "chat_template_kwargs"),
    ):
        with pytest.raises(UserError) as caught:
            prompt(**fields)
        assert caught.value.param == param


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"properties": {"a": {"contains": {}}}}, "'contains' is not permitted"),
        ({"properties": {"a": {"anyOf": 5}}}, "it must be a list"),
        ({"required": 5}, "required"),
    ],
)
def test_a_tool_whose_calls_cannot_be_forced_is_refused_by_its_path(
    llm: LLM, schema: dict[str, Any], words: str
) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    with pytest.raises(UserError, match=words) as caught:
        llm.chat([{"role": "user", "content": "hello"}], GREEDY, tools=tools, tool_choice="required")
    assert caught.value.param == "tools[0].function.parameters"


def test_bad_words_are_sent_as_their_tokens(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Submit] = []
    handle = llm._driver.handle
    monkeypatch.setattr(llm._driver, "handle", lambda one: (sent.append(one), handle(one)))
    llm.generate("abc", SamplingParams(max_tokens=1, bad_words=["ab", " c", "ab"]))
    encode = byte_tokenizer().encode
    assert sent[0].bad_words == [encode("ab"), encode("c")]
    with pytest.raises(UserError, match="bad_words"):
        SamplingParams(bad_words=[""])


def test_where_no_token_is_left_it_is_said_before_one_is_drawn(llm: LLM) -> None:
    (a,) = byte_tokenizer().encode("a")
    for others in ({"bad_words": ["a"]}, {"bad_words": ["aa"]}, {"logit_bias": {a: -np.inf}}):
        with pytest.raises(UserError, match="leave none") as caught:
            llm.generate("abc", SamplingParams(allowed_token_ids=[a], **others))  # type: ignore[arg-type]
        assert caught.value.param == "allowed_token_ids"
    with pytest.raises(UserError, match="leave none"):
        llm.generate("abc", SamplingParams(allowed_token_ids=[EOS], min_tokens=1))
    llm.generate("abc", SamplingParams(allowed_token_ids=[a], bad_words=["b", "ba"], max_tokens=2))


def test_what_cannot_be_honoured_is_refused_and_the_rest_forgotten(llm: LLM) -> None:
    with pytest.raises(UserError, match="tokens"):
        llm.generate(["abc", "x" * 300], GREEDY)
    with pytest.raises(UserError, match="2 prompts, but 1"):
        llm.generate(["a", "b"], [GREEDY])
    assert len(llm.generate("abc", GREEDY)) == 1


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("temperature", [-0.1, float("nan"), float("inf"), "1", None, True]),
        ("top_p", [-1, 1.01, float("nan"), "x"]),
        ("top_k", [-2, 1.5, "3"]),
        ("min_p", [-0.1, 1.1]),
        ("repetition_penalty", [0, -1, float("inf")]),
        ("presence_penalty", [float("nan"), "x"]),
        ("frequency_penalty", [float("inf"), None]),
        ("seed", [-(2**63) - 1, 1.0, 2**63]),
        ("max_tokens", [0, -1, 1.5, "16", True]),
        ("min_tokens", [-1, None]),
        ("stop", [3, [1], b"x", None]),
        ("stop_token_ids", [3, [-1], ["a"], [1.0], None]),
        ("include_stop_str_in_output", [1, "yes", None]),
        ("ignore_eos", [0]),
        ("skip_special_tokens", ["no"]),
        ("logit_bias", [[1], {"a": 1.0}, {1: "x"}, {1: float("nan")}, {1: float("inf")}, None]),
        ("bad_words", ["x", [1], [""], [" "], None]),
        ("allowed_token_ids", [[], 5, [-1], ["a"], [True]]),
        ("logprobs", [-1, 1.5, True]),
        ("prompt_logprobs", [-1, "2"]),
    ],
)
def test_parameters_are_checked_when_they_are_made(field: str, values: list[object]) -> None:
    for value in values:
        with pytest.raises(UserError, match=rf"^{field} must be ") as caught:
            SamplingParams(**{field: value})
        assert caught.value.param == field


def test_every_parameter_is_checked() -> None:
    for field in SamplingParams.__struct_fields__:
        with pytest.raises(UserError, match=f"^{field} "):
            SamplingParams(**{field: object()})


def test_what_a_sampler_can_follow_is_taken(llm: LLM) -> None:
    odd = SamplingParams(
        temperature=np.float32(0.5),
        top_k=np.int64(3),
        logit_bias={5: -np.inf},
        stop=["a"],
        seed=-5,
        top_p=0,
        max_tokens=4,
    )
    assert len(llm.generate("abc", odd)[0].token_ids) == 4
    assert len(llm.generate([np.int64(1), np.int64(2)], odd)) == 1


@pytest.mark.parametrize(
    "prompts", [None, 3, b"ab", [1.5], [[1], 2.0], [None], {"a": 1}, [True], ["a", [b"b"]]]
)
def test_what_is_no_prompt_is_refused(llm: LLM, prompts: object) -> None:
    with pytest.raises(UserError, match=r"^prompts must be") as caught:
        llm.generate(prompts, GREEDY)  # type: ignore[arg-type]
    assert caught.value.param == "prompts"


def test_what_are_no_parameters_is_refused(llm: LLM) -> None:
    for params in ({"temperature": 0}, [{"temperature": 0}], 3, "greedy"):
        with pytest.raises(UserError, match=r"^params must be SamplingParams"):
            llm.generate("a", params)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="1 prompts, but 0"):
        llm.generate("a", [])


def test_what_is_no_conversation_is_refused(llm: LLM) -> None:
    for messages in (None, "hi", ["hi"], [["hi"]], {"role": "user"}, [3]):
        with pytest.raises(UserError, match=r"^messages must be a list"):
            llm.chat(messages, GREEDY)  # type: ignore[arg-type]
    assert llm.chat([], GREEDY) == []


def test_a_closed_one_says_so() -> None:
    llm = make()
    llm.close()
    llm.close()
    for use in (lambda: llm.generate("a"), lambda: llm.chat([]), llm.__enter__):
        with pytest.raises(UserError, match=r"closed.*make another"):
            use()


OPTIONS = [
    ({"instance": "inf9.large"}, "instance: unknown instance"),
    ({"tensor": 64}, "tensor=64: the model has"),
    ({"pipeline": 99}, "pipeline=99: the model has"),
    ({"profile": "nothing"}, "profile nothing: no such file"),
    ({"timing_model": "llama-9-1b"}, "timing_model: "),
    (
        {"num_blocks": 1, "max_model_len": 256},
        "num_blocks=1 holds less than one sequence of max_model_len=256",
    ),
    ({"time_scale": 2.0}, r"time_scale: only the device clock has a time scale \(clock"),
    ({"formatt": "int8"}, "formatt is not an option of LLM; did you mean format"),
    ({"xyz": 1}, "xyz is not an option of LLM; there are model, format, bits"),
    ({"format": "int4"}, "format: Input should be"),
    ({"max_num_seqs": 0}, "max_num_seqs: "),
    ({"instance": "inf1.xlarge", "timing_model": "llama-3.1-70b"}, "instance='"),
]


@pytest.mark.parametrize(("options", "said"), OPTIONS)
def test_wrong_options_are_named_as_options(options: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        LLM(TINY, **options)
    assert "--" not in caught.value.message


@pytest.mark.parametrize("model", [3, None, "nowhere/at/all", ""])
def test_what_is_no_model_is_refused(model: object) -> None:
    with pytest.raises(UserError):
        LLM(model)  # type: ignore[arg-type]


def test_options_are_called_as_the_commands_flags_are_translated() -> None:
    assert {*llm_module.OPTIONS.values()} == EngineConfig.model_fields.keys()
    assert (llm_module.OPTIONS["dtype"], llm_module.OPTIONS["max-num-seqs"]) == ("format", "max_num_seqs")


def test_max_tokens_none_fills_the_context(llm: LLM) -> None:
    (output,) = llm.generate("abc", SamplingParams(temperature=0, max_tokens=None))
    assert len(output.token_ids) == 256 - 3


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
    assert done.stdout.strip() == "['corepipe.version']"


class Pet(pydantic.BaseModel):
    name: str


CONSTRAINTS = [
    ({"json": Pet}, {"json": Pet.model_json_schema()}),
    ({"json": '{"type": "null"}'}, {"json": {"type": "null"}}),
    ({"json_object": True}, {"json": {"type": "object"}}),
    ({"regex": "a+"}, {"regex": "a+"}),
    ({"choice": ("a", "b")}, {"choice": ["a", "b"]}),
    ({"grammar": 'root ::= "a"'}, {"grammar": 'start: "a"'}),
]


@pytest.mark.parametrize(("asked", "same"), CONSTRAINTS)
def test_an_answer_is_held_to_what_is_asked(asked: dict[str, Any], same: dict[str, Any]) -> None:
    """A constraint may have vLLM's form or be a dict of its fields; equal texts give the same grammar."""
    for form in (StructuredOutputsParams(**asked), asked):
        params = SamplingParams(structured_outputs=form)
        assert params.constraint() is not None
        grammar = llm_module._grammars([params], Spelling)[id(params)]
        if "grammar" not in asked:
            other = SamplingParams(structured_outputs=same)
            assert grammar == llm_module._grammars([other], Spelling)[id(other)]
        assert grammar


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({}, "there is none"),
        ({"regex": "a", "choice": ["a"]}, "there are"),
        ({"regx": "a"}, "regx is no field"),
        ({"regex": 5}, "structured_outputs"),
        ({"choice": [5]}, "structured_outputs"),
        (5, "StructuredOutputsParams"),
        (StructuredOutputsParams(json=5), "must be a JSON schema"),
        (StructuredOutputsParams(whitespace_pattern=5), "structured_outputs"),  # type: ignore[arg-type]
    ],
)
def test_a_constraint_that_cannot_be_is_refused_when_it_is_made(asked: Any, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        SamplingParams(structured_outputs=asked)
    assert (caught.value.param or "").startswith("structured_outputs")


def test_a_schema_that_cannot_be_honoured_is_refused_before_a_token(llm: LLM) -> None:
    params = SamplingParams(structured_outputs={"json": {"properties": {"a": {"not": {}}}}})
    with pytest.raises(UserError, match=r"In context=\('properties', 'a'\), 'not' is not permitted"):
        llm.generate(["a", "b"], [GREEDY, params])
    assert llm.generate("abc", GREEDY)[0].text
