#!/bin/sh
# What a prefix cache is worth: the same load with a system prompt and documents that requests share, and
# without.  The second run prints its ratios to the first.
#     benchmarks/load/prefix.sh [URL] [flags of corepipe bench]
set -eu
url=${1:-http://127.0.0.1:8000}
[ $# -eq 0 ] || shift
out=${OUTPUT:-prefix}
load="--requests 64 --concurrency 8 --output-len 32"
# shellcheck disable=SC2086
"${COREPIPE:-corepipe}" bench "$url" $load --input-len 544 --output "$out/apart" "$@"
# shellcheck disable=SC2086
exec "${COREPIPE:-corepipe}" bench "$url" $load --input-len 32 --prefix-tree 1x256,4x256 \
    --output "$out/shared" --compare "$out/apart" "$@"
