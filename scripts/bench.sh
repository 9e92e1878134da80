#!/usr/bin/env bash
# Measures this machine, CPU and GPU if there is one, and records it under bench/results.
set -euo pipefail
cd "$(dirname "$0")/.."

commit=$(git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
[ -z "$(git status --porcelain -- include src cli 2>/dev/null)" ] || commit+=-changed
suites=(cpu)
if build/extattn info --json | python3 -c 'import json, sys; sys.exit(not json.load(sys.stdin)["gpus"])'; then
  suites+=(seed window mla prefix verify)
fi
mkdir -p bench/results
for suite in "${suites[@]}"; do
  record=bench/results/$(date -u +%Y-%m-%d)-$suite-$commit.json
  build/extattn bench "$suite" --commit "$commit" --json "$record"
  echo "recorded in $record"
done
echo "scripts/bench_table.py puts what is recorded into the README"
