#!/bin/sh
# Latency against load, up to where throughput stops following: report.html has the curves.  About five minutes.
#     benchmarks/load/sweep.sh [URL] [flags of corepipe bench]
set -eu
url=${1:-http://127.0.0.1:8000}
[ $# -eq 0 ] || shift
exec "${COREPIPE:-corepipe}" bench "$url" --sweep --duration 30 --warmup 8 --input-len 256 --output-len 64 \
    --slo 'ttft:1s tpot:100ms' --output "${OUTPUT:-sweep}" "$@"
