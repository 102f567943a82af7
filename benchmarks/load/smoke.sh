#!/bin/sh
# Does it answer under a little load?  Half a minute; fails if any request fails.
#     benchmarks/load/smoke.sh [URL] [flags of corepipe bench]
set -eu
url=${1:-http://127.0.0.1:8000}
[ $# -eq 0 ] || shift
exec "${COREPIPE:-corepipe}" bench "$url" --wait 60 --requests 20 --concurrency 4 \
    --input-len 64 --output-len 32 --assert 'failed==0' "$@"
