"""Command lines that cannot be right: one line that says what to do, exit code 2, and no traceback."""

from __future__ import annotations

import re
import shlex

import pytest

from tests.servers import TINY, run

NOBODY = "http://127.0.0.1:9"
"""A URL where no server answers: port 9 is `discard`'s."""

LINES = """
serve nothing-here | nor a known model
serve /no/such | no such file or directory
serve . | neither a config.json nor exactly one .gguf file
serve llama-3.1-8b | no weights; .*--timing-model llama-3.1-8b
serve TINY --port 99999 | --port.*65535
serve TINY --port x | --port
serve TINY --host 256.1.1.1 | --api-key
serve TINY --instance inf9.xlarge | did you mean inf2.xlarge
serve TINY --dtype int3 | --dtype': 'int3' is not one of
serve TINY --pipeline 0 | --pipeline
serve TINY --tensor 1000 | --tensor 1000: the model has 4 attention heads
serve TINY --max-model-len 99999999 | 256 positions
serve TINY --kv-cache-memory-bytes 12QB | --kv-cache-memory-bytes
serve TINY --kv-cache-memory-bytes -5 | --kv-cache-memory-bytes
serve TINY --profile nothing | --profile nothing: no such file
serve TINY --policy fastest | --policy': 'fastest' is not one of
serve TINY --api-key-file /no/such | --api-key-file /no/such: No such file or directory$
serve TINY --chat-template /no/such | --chat-template /no/such: No such file or directory$
serve TINY --speculative-config { | --speculative-config: is not JSON
serve TINY --speculative-config [] | --speculative-config: is not an object
serve TINY --also x | --also x: give NAME=PATH
serve TINY --also a=/no/such | /no/such: no such file or directory
serve TINY --timing-model nothing-here | --timing-model: 'nothing-here' is not a file.*docs/models.md
serve TINY --tool-call-parser nothing | --tool-call-parser nothing is not known
serve TINY --inject slow:200% | --inject
serve TINY --ssl-certfile /no/such | --ssl-certfile /no/such
serve TINY --record /dev/null/x | --record /dev/null/x: Not a directory
serve --replay /no/such | --replay /no/such: No such file or directory
serve TINY --threads 0 | --threads
serve TINY --kv-events-config { | --kv-events-config
serve TINY --nothing | No such option: --nothing
serve TINY TINY | unexpected extra argument
bench x | http://x: no server answers there
bench NOBODY | Connection refused
bench NOBODY --rate nan | --rate must be above 0
bench NOBODY --requests 0 | --requests
bench NOBODY --input-len 0 | --input-len 0: not a length
bench NOBODY --input-len uniform:9:3 | --input-len uniform:9:3
bench NOBODY --slo ttft | --slo 'ttft'
bench NOBODY --slo ttft:1x | give a time with its unit
bench NOBODY --assert failed | --assert 'failed': give KEY<NUMBER
bench NOBODY --assert foo<3 | the result has no foo
bench NOBODY --trace /no/such | --trace /no/such: No such file or directory
bench NOBODY --compare /no/such | --compare /no/such: No such file or directory
bench NOBODY --output /dev/null/x | --output /dev/null/x: /dev/null is no directory
bench ftp://127.0.0.1 | give http://HOST:PORT
bench http://[::1 | give http://HOST:PORT
bench http://127.0.0.1:99999 | give http://HOST:PORT
plan | Missing argument 'model'
plan nothing-here --rate 1 | 'nothing-here' is not a file
plan llama-3.1-8b | give --rate
plan llama-3.1-8b --rate 0 | --rate must be
plan llama-3.1-8b --rate 2 --ttft 0 | --ttft 0: give a time with its unit
plan llama-3.1-8b --rate 2 --ttft 1parsec | --ttft 1parsec
plan llama-3.1-8b --rate 2 --percentile 101 | --percentile
plan llama-3.1-8b --rate 2 --prices /no/such | --prices /no/such: cannot be read: No such file or directory$
plan llama-3.1-8b --rate 2 --emit nothing | --emit': 'nothing' is not one of
plan llama-3.1-8b --buckets | give one --instance
plan llama-3.1-8b --buckets --instance inf2.xlarge --trace /dev/null | --trace /dev/null: it is empty
plan llama-3.1-8b --rate 2 --input-len 9000 --output-len 200000 | llama-3.1-8b takes 131072
simulate llama-3.1-70b --instance inf2.xlarge | does not fit the memory of inf2.xlarge; use --instance
simulate llama-3.1-8b --rate -1 | --rate must be above 0
simulate llama-3.1-8b --rate 1 --users 1 | give one of them
simulate llama-3.1-8b --trace / | --trace /: Is a directory
simulate llama-3.1-8b --write-trace /tmp/x | --trace-format
simulate llama-3.1-8b --plot x.png | --plot x.png
simulate llama-3.1-8b --prefix-tree 0x0 | --prefix-tree 0x0
simulate resnet50 --output-len 3 | --output-len is not for resnet-50
simulate bert-base-uncased --turns 3 | --turns is not for bert-base
profile llama-3.1-8b --batch 0 | --batch
profile llama-3.1-8b -o /no/such/x | --output /no/such/x: there is no directory
predict /no/such -o x.csv | /no/such: No such file or directory
predict . -o x | is a directory
validate /dev/null | /dev/null: is empty
fit /no/such -o x.json | /no/such: No such file or directory
fit . -o x.json | result.json: No such file or directory
fleet nothing | No such command 'nothing'
ls --url NOBODY | no corepipe server answers there
ls --url x | no corepipe server answers there
pull nothing-here | nor a known model
top NOBODY | no corepipe server answers there
monitor NOBODY --period 0 | --period 0: give a time with its unit
cache nothing | No such command 'nothing'
nothing | No such command 'nothing'
--nothing | No such option: --nothing
"""


@pytest.mark.parametrize("line", LINES.strip().splitlines())
def test_one_line_says_what_to_do(line: str) -> None:
    asked, _, said = line.replace("TINY", str(TINY)).replace("NOBODY", NOBODY).partition(" | ")
    done = run(*shlex.split(asked))
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    *before, last = (part for part in done.stderr.splitlines() if part.startswith("corepipe: "))
    assert not before
    assert re.search(said, last), last
