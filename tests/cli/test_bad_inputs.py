"""Command lines that cannot be right: one line that says what to do, exit code 2, and no traceback.

Each line below is a command and patterns of what is said, with ` & ` between them.
"""

from __future__ import annotations

import re
import shlex

import pytest

from tests.servers import TINY, run

ASSUMED = '{"num_speculative_tokens": 3, "rejection_sample_method": "synthetic", '
NAMES = {
    "TINY": str(TINY),
    "NOBODY": "http://127.0.0.1:9",
    "FLEET": "127.0.0.1:6379",
    r"GUESSES\((.*)\)": ASSUMED + r'"method": "ngram", "synthetic_acceptance_rates": [\1, 0.8, 0.7]}',
    r"DRAFTS\((.*)\)": ASSUMED
    + r'"method": "draft_model", "model": "\1", "synthetic_acceptance_rates": [0.8, 0.5, 0.2]}',
}
"""Short names of the table below.  At NOBODY no server answers: port 9 is `discard`'s."""

LINES = r"""
serve nothing-here | nor a known model
serve /no/such | no such file or directory
serve . | neither a config.json nor exactly one .gguf file
serve llama-3.1-8b | no weights; .*--timing-model llama-3.1-8b
serve TINY --port 99999 | --port.*65535
serve TINY --port x | --port
serve TINY --host 256.1.1.1 | --api-key
serve TINY --host 0.0.0.0 | --api-key & --insecure
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
serve TINY --lora-dir /no/such | --lora-dir /no/such: no such directory$
serve TINY --models-dir /no/such | --models-dir /no/such: no such directory$
serve TINY --max-models 2 | --max-models & goes with --models-dir
serve TINY --record /dev/null/x | --record /dev/null/x: Not a directory
serve --replay /no/such | --replay /no/such: No such file or directory
serve TINY --threads 0 | --threads
serve TINY --kv-events-config { | --kv-events-config
serve TINY --nothing | No such option: --nothing
serve TINY TINY | unexpected extra argument
serve TINY --prot 1 | --prot
serve TINY --dtype int4 | int4-weights
serve TINY --block-size 17 | --block-size
serve TINY --threads 100000 | --threads
serve TINY --kv-cache-memory-bytes 1Gig | --kv-cache-memory-bytes.*1Gig: give bytes, as 1073741824, 1GiB or 500MB
serve TINY --also b=TINY,kv-cache-memory-bytes=1Gig | kv-cache-memory-bytes.*1Gig: give bytes
serve TINY --also b=TINY --also c=TINY | 3 models need 3 NeuronCores
serve TINY --also b=TINY,tensor=2 | 2 models need 3 NeuronCores
serve TINY --kv-events-config '{"enable_kv_cache_event": true}' | enable_kv_cache_event: Extra inputs are not permitted
serve TINY --kv-events-config '{"endpoint": "5557"}' | --kv-events-config: .*endpoint: String should match pattern
serve TINY --kv-events-config '{"publisher": "kafka"}' | publisher: Input should be 'null' or 'zmq'
serve TINY --kv-events-config '{"buffer_steps": 0}' | buffer_steps: Input should be greater than or equal to 1
serve TINY --kv-events-config [] | --kv-events-config: .*Input should be an object
serve TINY --no-enable-prefix-caching --kv-events-config '{"enable_kv_cache_events": true}' | --kv-events-config: .*no prefix cache
serve TINY --fleet FLEET --replicas 1 --kv-events-config '{"enable_kv_cache_events": true}' | --kv-events-config: .*not for a fleet
serve TINY --replicas 2 | --replicas
serve TINY --fleet FLEET | --replicas
serve TINY --fleet FLEET --replicas 0 | --replicas
serve TINY --fleet FLEET --replicas 3 --max-replicas 2 | --max-replicas
serve TINY --fleet FLEET --replicas 2 --slo ttft:1s | --slo
serve TINY --fleet FLEET --replicas 2 --max-replicas 3 --slo ttft:1 | ttft:1: give a time with its unit
serve TINY --fleet FLEET --replicas 2 --also other=TINY | --also
serve TINY --fleet nowhere --replicas 2 | --fleet nowhere: give the head's HOST:PORT
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
bench NOBODY --rate 1 --concurrency 2 | --rate & --concurrency
bench NOBODY --rate inf --duration 5 | --rate inf & --requests
bench NOBODY --rate 1..5 | --rate 1..5 & --duration
bench NOBODY --rate 1,2 | --rate 1,2
bench NOBODY --sweep --requests 3 | --sweep & --requests
bench NOBODY --sweep --rate 1..2 | --rate 1..2 & 1,2,4
bench NOBODY --sweep --trace x | --sweep & --trace
bench NOBODY --trace nowhere.csv --concurrency 2 | --concurrency & --trace
bench NOBODY --trace-speed 2 | --trace-speed & --trace
bench NOBODY --arrival gamma | --arrival gamma & --rate
bench NOBODY --slo p99:5 | --slo & ttft:500ms
bench NOBODY --assert p99_ttf_ms<5 | p99_ttf_ms & p99_ttft_ms
bench NOBODY --extra-body { | --extra-body & JSON
bench NOBODY --tokenizer /nowhere | /nowhere
bench NOBODY --documents 3 | --documents & --api rerank
bench NOBODY --api embeddings --documents 3 | --documents & --api rerank
bench NOBODY --api embeddings --output-len 5 | --output-len & --api embeddings
bench NOBODY --api classify --turns 2 | --turns & --api classify
bench NOBODY --api rerank --cancel 0.5 | --cancel & --api rerank
bench NOBODY --api embeddings --trace x | --trace & --api embeddings
bench NOBODY --api embeddings --slo ttft:1s | --slo & e2e:200ms
bench NOBODY --api rerank --slo 'tpot:1s e2e:1s' | --slo & e2e:200ms
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
plan bert-base | give --rate
plan bert-base --rate 1 --tpot 5ms | --tpot is not for bert-base
plan bert-base --rate 1 --output-len 5 | --output-len is not for bert-base
plan bert-base --rate 1 --emit helm | --emit is not for bert-base
plan bert-base --rate 1 --next-measurement | --next-measurement is not for bert-base
plan resnet-50 --rate 1 --input-len 5 | images are all of one size
plan bert-base --rate 1 --input-len 600 | --input-len 600: bert-base takes 512 tokens
plan bert-base --rate 1 --instance trn2.48xlarge | no on-demand price
plan bert-base --rate 1 --region mars | --region mars
plan llama-3.2-1b --rate 1 --instance inf2.xlarg | unknown instance 'inf2.xlarg'; did you mean inf2.xlarge
plan llama-3.2-1b --rate 1 --ttft 500 | --ttft 500: give a time with its unit, as 500ms or 0.5s
plan llama-3.2-1b --rate 1 --region mars | --region mars: the price list has no prices there; use --region
plan llama-3.2-1b --rate 1 --instance trn2.48xlarge | no on-demand price in us-east-1; it has --purchase capacity-block
plan llama-3.2-1b --rate 1 --emit helm --json | give one of them
plan llama-3.2-1b --rate 1 --profile nvidia | --profile nvidia: no such file
plan llama-3.2-1b --rate 1 --emit vllm-neuron --dtype int8 --instance inf2.xlarge | has no int8; use --dtype
plan llama-3.2-1b --rate 1 --emit vllm-neuron --instance inf1.xlarge | vLLM does not run on inf1.xlarge
plan llama-3.2-1b --rate 1 --max-model-len 999999999 | --max-model-len 999999999:
plan llama-3.2-1b --rate 1 --speculative-config '{"method": "ngram", "num_speculative_tokens": 2}' | no texts to draft from
plan llama-3.2-1b --rate 1 --speculative-config GUESSES(1.1) | synthetic_acceptance_rates: 0:
plan llama-3.2-1b --rate 1 --speculative-config GUESSES(0.9) --emit vllm-neuron | no such drafts to --emit
plan llama-3.1-8b --buckets --instance inf2.xlarge --ttft 1s | --ttft has no effect with --buckets
plan llama-3.1-8b --buckets --instance inf1.xlarge | --buckets is for vLLM
plan llama-3.1-8b --rate 1 --graphs 4 | --graphs needs --buckets
plan llama-3.1-8b --buckets --instance inf2.xlarge --trace none.csv | --trace none.csv: No such file
plan llama-3.1-8b --buckets --instance inf2.xlarge --max-model-len 100 | use at least that
simulate llama-3.1-70b --instance inf2.xlarge | does not fit the memory of inf2.xlarge; use --instance
simulate llama-3.1-8b --rate -1 | --rate must be above 0
simulate llama-3.1-8b --rate 1 --users 1 | give one of them
simulate llama-3.1-8b --trace / | --trace /: Is a directory
simulate llama-3.1-8b --write-trace /tmp/x | --trace-format
simulate llama-3.1-8b --plot x.png | --plot x.png
simulate llama-3.1-8b --prefix-tree 0x0 | --prefix-tree 0x0
simulate resnet50 --output-len 3 | --output-len is not for resnet-50
simulate bert-base-uncased --turns 3 | --turns is not for bert-base
simulate bert-base --slo tpot:9ms | --slo tpot & bert-base & generates no tokens
simulate qwen3-0.6b --task embed --output-len 9 | --output-len & generates no tokens
simulate llama-3.2-1b --instance inf3.xlarge | inf3.xlarge & inf2.xlarge
simulate llama-3.2-1b --tensor 64 | --tensor 64 & at most 32
simulate llama-3.2-1b --lnc 2 | inf2.xlarge has 1
simulate llama-3.2-1b --rate 0 | --rate & inf
simulate llama-3.2-1b --burstiness 2 --rate 1 | --arrival gamma
simulate llama-3.2-1b --input-len much | --input-len much & uniform:LOW:HIGH
simulate llama-3.2-1b --slo fast | --slo & ttft:500
simulate llama-3.2-1b --slo ttft:500 | --slo & ttft:500 & with its unit
simulate llama-3.2-1b --slo '' | --slo & ttft:500
simulate llama-3.2-1b --output /nowhere/x.json | --output & /nowhere
simulate llama-3.2-1b --trace nowhere.csv | nowhere.csv
simulate llama-3.2-1b --trace nowhere.csv --rate 2 | --rate & --trace
simulate llama-3.2-1b --trace nowhere.csv --input-len 9 | --input-len & --trace
simulate llama-3.2-1b --rate 1 --duration inf | finite --duration
simulate llama-3.2-1b --rate 1 --duration 0 | --duration 0 & no request
simulate llama-3.2-1b --arrival gamma | --arrival gamma & --rate
simulate llama-3.2-1b --rate 1 --think-time 2 | --think-time & --users
simulate resnet-50 --input-len 9 | --input-len & resnet-50 & one size
simulate resnet-50 --tensor 2 | --tensor & resnet-50 & Convolution is not cut
simulate mamba2-130m --speculative-config GUESSES(0.9) | keeps one state a sequence
simulate bert --speculative-config GUESSES(0.9) | generates nothing
simulate llama-3.1-8b --speculative-config '{"method": "ngram", "num_speculative_tokens": 4}' | no texts to draft from
simulate llama-3.1-8b --speculative-config DRAFTS(mamba2-130m) | mamba2-130m keeps one state a sequence
simulate llama-3.1-8b --speculative-config DRAFTS(bert-base) | generates nothing
simulate llama-3.1-8b --speculative-config DRAFTS(smollm2-135m) | has a vocabulary of 49152 tokens
simulate mamba2-130m --speculative-config DRAFTS(mamba2-130m) | keeps one state a sequence
simulate llama-3.2-1b --speculative-config DRAFTS(llama-3.1-70b) --instance inf2.xlarge | does not fit
simulate llama-3.2-1b --profile no-such | --profile no-such: no such file, nor one of ideal, .*vllm-neuron-native
profile llama-3.1-8b --batch 0 | --batch
profile llama-3.1-8b -o /no/such/x | --output /no/such/x: there is no directory
profile smollm2-135m --instance inf3.xlarge | unknown instance 'inf3.xlarge'; did you mean
profile smollm2-153m | smollm2-135m
profile smollm2-135m --pipeline 31 --instance inf1.24xlarge | choose at most 30
profile llama-3.1-70b | does not fit the memory of inf2.xlarge; use --instance
profile smollm2-135m --profile nothing | --profile nothing: no such file
profile smollm2-135m --max-model-len 100 | use --max-model-len 515
profile smollm2-135m --input-len 8192 | takes 8192 tokens; use --input-len 8189
profile vit-base | takes 197 tokens; use --input-len 197
profile bert-base --ladder --tensor 2 | --tensor is set by --ladder itself
profile bert-base --ladder --batch 8 | --batch is set by --ladder itself
profile bert-base --ladder --output x.json | --output is set by --ladder itself
predict /no/such -o x.csv | /no/such: No such file or directory
predict . -o x | is a directory
validate /dev/null | /dev/null: is empty
fit /no/such -o x.json | /no/such: No such file or directory
fit . -o x.json | result.json: No such file or directory
fleet nothing | No such command 'nothing'
fleet | Missing command
ls --url NOBODY | no corepipe server answers there
ls --url x | no corepipe server answers there
ls --instance inf2.2xlarge | inf2.xlarge
pull nothing-here | nor a known model
pull no/such/model | no/such/model
top NOBODY | no corepipe server answers there
monitor NOBODY --period 0 | --period 0: give a time with its unit
monitor --period 5 | give a time with its unit
cache nothing | No such command 'nothing'
cache | Missing command
cache prune | --older-than 30d, --max-size 2GB or --all
cache prune --older-than 3 | --older-than 3: give a number with its unit
cache prune --max-size 2G | --max-size 2G: give a number with its unit \(kB, MB, GB, TB, KiB,
nothing | No such command 'nothing'
--nothing | No such option: --nothing
"""  # noqa: E501 -- a line a case


@pytest.mark.parametrize("line", LINES.strip().splitlines())
def test_one_line_says_what_to_do(line: str) -> None:
    asked, _, said = line.partition(" | ")
    words = shlex.split(asked)
    for name, meant in NAMES.items():
        words = [re.sub(name, meant, word) for word in words]
    done = run(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    *before, last = (part for part in done.stderr.splitlines() if part.startswith("corepipe: "))
    assert not before
    assert [pattern for pattern in said.split(" & ") if not re.search(pattern, last)] == [], last
