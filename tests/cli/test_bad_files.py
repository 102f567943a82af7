"""Files that cannot be right: one line that names the file, the place and the field, and exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.servers import run

HEADER = "instance,model,task,dtype,parallelism,batch_size,input_len,output_len,metric,value,unit,percentile"
GOOD = "inf2.xlarge,llama-3.2-1b,text-generation,bf16,TP2,1,128,64,tpot,12,ms,p50"
BUCKETS = ("plan", "llama-3.2-1b", "--buckets", "--instance", "inf2.xlarge", "--trace")
PRICED = ("plan", "llama-3.2-1b", "--rate", "1", "--prices")


def rows(*lines: str) -> str:
    return "\n".join((HEADER, *lines, ""))


CASES = {
    "no unit": (
        ("validate",),
        rows(GOOD, GOOD.replace(",ms,", ",,")),
        "line 3, unit is missing; give one of ms",
    ),
    "no column of units": (
        ("validate",),
        rows(GOOD).replace(",unit", "").replace(",ms", ""),
        "line 2, unit is missing; give one of ms",
    ),
    "a negative time": (
        ("validate",),
        rows(GOOD, GOOD.replace(",12,", ",-12,")),
        "line 3, value must be a positive number, not '-12'",
    ),
    "a time before the start": (
        BUCKETS,
        '{"timestamp": -5, "input_length": 10, "output_length": 1}\n',
        "line 1, timestamp: -5 is before the start",
    ),
    "a negative length": (
        BUCKETS,
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:00:00,-7,1\n",
        "line 2, ContextTokens: -7 tokens; a request has at least 1",
    ),
    "a span of an unknown parent": (
        ("simulate", "llama-3.2-1b", "--instance", "inf2.xlarge", "--trace"),
        '{"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "1", "spanId": "2", "parentSpanId": "3", '
        '"startTimeUnixNano": "1", "endTimeUnixNano": "2"}]}]}]}\n',
        "line 1, parentSpanId: span 2: 3 is not in the file",
    ),
    "a negative price": (
        PRICED,
        "instance,purchase,region,$/h\ntrn3.48xlarge,on-demand,us-east-1,-4\n",
        "line 2: $/h must be a positive number, not '-4'",
    ),
    "a price of a size that is not described": (
        PRICED,
        "instance,purchase,region,$/h\ntrn3e.24xlarge,on-demand,us-east-1,4\n",
        "trn3e.24xlarge: the Neuron driver knows it",
    ),
    "a profile with a negative constant": (
        ("simulate", "llama-3.2-1b", "--profile"),
        '{"name": "x", "base": "nxdi", "source": "", "constants": {"v2": {"memory_efficiency": -1, '
        '"engine_efficiency": 1, "collective_seconds": 0, "collective_bytes_per_second": 1, '
        '"descriptor_bytes": 1}}}',
        "memory_efficiency must be a number that is not negative, not -1",
    ),
}


@pytest.mark.parametrize("kind", CASES)
def test_a_file_that_cannot_be_right_is_refused_by_its_name_and_place(kind: str, tmp_path: Path) -> None:
    command, text, says = CASES[kind]
    path = tmp_path / "given.csv"
    path.write_text(text)
    shown = run(*command, str(path))
    assert shown.returncode == 2
    assert shown.stdout == ""
    (line,) = shown.stderr.splitlines()
    assert str(path) in line
    assert says in line
