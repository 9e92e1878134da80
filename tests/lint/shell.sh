#!/usr/bin/env bash
# Every shell script passes shellcheck: shell.sh SOURCE-DIR BUILD-DIR CC
set -euo pipefail
cd "$1"
. tests/lint/files.sh
source_files '*' | while read -r file; do
  if head -n 1 "$file" | grep -aqE '^(#!.*sh\b|# shellcheck shell=)'; then echo "$file"; fi
done | xargs shellcheck -x
