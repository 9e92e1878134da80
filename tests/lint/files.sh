# shellcheck shell=bash
# Sourced by the linters: source_files PATTERN... prints the project's own files, one a line.
# In a checkout those are git's and the new ones; in an unpacked archive, all but builds.
source_files() {
  if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    git ls-files --cached --others --exclude-standard -- "$@" | while read -r file; do
      [ ! -e "$file" ] || echo "$file"
    done
  else
    local pattern
    for pattern in "$@"; do
      find . -path './build*' -prune -o -type f -name "$pattern" -print | sed 's,^\./,,'
    done
  fi
}
