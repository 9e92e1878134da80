#!/usr/bin/env bash
# Every C and CUDA file is laid out as .clang-format says: format.sh SOURCE-DIR BUILD-DIR CC
set -euo pipefail
cd "$1"
. tests/lint/files.sh
mapfile -t files < <(source_files '*.c' '*.h' '*.cu' '*.cuh')
bad=()
for file in "${files[@]}"; do
  clang-format --dry-run -Werror "$file" 2>/dev/null || bad+=("$file")
done
if [ ${#bad[@]} -gt 0 ]; then
  echo "not as .clang-format says; type: clang-format -i ${bad[*]}"
  exit 1
fi
echo "${#files[@]} files"
