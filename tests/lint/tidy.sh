#!/usr/bin/env bash
# clang-tidy, with the repository's .clang-tidy, on every host C file that the build
# compiles: tidy.sh SOURCE-DIR BUILD-DIR CC
set -euo pipefail
cd "$1"
build=$2
# The files of the build that are the project's own, generated ones left out.
mapfile -t files < <(sed -n "s,^  \"file\": \"$PWD/\(.*\.c\)\".*,\1,p" "$build/compile_commands.json" |
  grep -v '^build' | sort -u)
if [ ${#files[@]} -eq 0 ]; then
  echo "no C file in $build/compile_commands.json" >&2
  exit 1
fi
# clang does not know all of gcc's warnings; what it says of them is no finding.
printf '%s\n' "${files[@]}" |
  xargs -P "$(nproc)" -n 1 clang-tidy --quiet -p "$build" --extra-arg=-Wno-unknown-warning-option 2>&1 |
  { grep -vE '^[0-9]+ warnings? (generated|treated as errors)' || true; }
echo "${#files[@]} files"
