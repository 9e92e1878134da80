#!/usr/bin/env bash
# Every shell script passes shellcheck, and none has a pipe that ends in a quiet grep: that
# stops reading at its first match, so what writes may die of SIGPIPE, which pipefail takes
# for a failure, now and then: shell.sh SOURCE-DIR BUILD-DIR CC
set -euo pipefail
cd "$1"
. tests/lint/files.sh
mapfile -t scripts < <(source_files '*' | while read -r file; do
  IFS= read -r -n 100 line <"$file" || true
  if [[ $line =~ ^('#!'.*sh($|[[:space:]])|'# shellcheck shell=') ]]; then echo "$file"; fi
done)
shellcheck -x "${scripts[@]}"
if grep -nE '(^|[^|])\| *grep +(-[^ ]+ +)*-[a-zA-Z]*q' "${scripts[@]}"; then
  echo "these pipes end in a quiet grep; read from <<<\"\$(...)\" instead" >&2
  exit 1
fi
