#!/bin/sh
# Five minutes at a steady rate: what a user sees on an ordinary day.  RATE requests/s (default 1).
#     RATE=2 benchmarks/load/steady.sh [URL] [flags of corepipe bench]
set -eu
url=${1:-http://127.0.0.1:8000}
[ $# -eq 0 ] || shift
exec "${COREPIPE:-corepipe}" bench "$url" --rate "${RATE:-1}" --duration 300 --warmup 8 \
    --input-len lognormal:256:0.6:1024 --output-len lognormal:96:0.5:256 \
    --slo 'ttft:1s tpot:100ms' "$@"
