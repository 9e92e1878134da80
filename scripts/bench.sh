#!/usr/bin/env bash
# Measures this machine, CPU and GPU if there is one, and records it under bench/results:
# scripts/bench.sh [TRACE]. TRACE, requests as JSON lines, is for the suite replay.
set -euo pipefail
trace=${1:+$(realpath "$1")}
cd "$(dirname "$0")/.."

commit=$(git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
[ -z "$(git status --porcelain -- include src cli 2>/dev/null)" ] || commit+=-changed
mkdir -p bench/results
record() { echo "bench/results/$(date -u +%Y-%m-%d)-$1-$commit.json"; }

build/bench/cpu/bench_cpu --threads "1,$(nproc)" --commit "$commit" --json "$(record cpu)"
if build/extattn info --json | python3 -c 'import json, sys; sys.exit(not json.load(sys.stdin)["gpus"])'; then
  for suite in seed window mla prefix ragged chunks verify; do
    build/extattn bench "$suite" --commit "$commit" --output "$(record "$suite")"
  done
  if [ -n "$trace" ]; then
    build/extattn bench replay --trace "$trace" --commit "$commit" --output "$(record replay)"
  else
    echo "skipped: the suite replay, no trace given"
  fi
else
  echo "skipped: the GPU suites, no GPU"
fi
echo "recorded in bench/results; scripts/bench_table.py and bench_picture.py put what is there into the documents"
