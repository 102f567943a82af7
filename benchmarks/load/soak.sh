#!/bin/sh
# Hours of conversations, with clients that hang up: does anything leak, slow down or fail?  HOURS (default 8).
#     HOURS=1 benchmarks/load/soak.sh [URL] [flags of corepipe bench]
set -eu
url=${1:-http://127.0.0.1:8000}
[ $# -eq 0 ] || shift
exec "${COREPIPE:-corepipe}" bench "$url" --api chat --rate "${RATE:-0.5}" --duration "$(( ${HOURS:-8} * 3600 ))" \
    --turns 4 --think-time 5 --prefix-tree 1x128 --input-len uniform:10:100 --output-len uniform:10:100 \
    --cancel 0.1 --assert 'failed==0' "$@"
