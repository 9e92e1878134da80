#!/usr/bin/env bash
# Whether a refactor left the kernels' machine code as it was: compares the cubins of two builds.
#
#     scripts/same_sass.sh OLD-FOLDER NEW-FOLDER [NAME...]      folders of NAME.sm_XX.cubin, as in BUILD/cuda
#
# One line a cubin that both have (or a NAME.sm_XX of them): "same" and its number of instructions, or "differs", both
# numbers, and those registers and instructions of which there are not as many as before. Fails where one differs or is
# missing. The disassembler is nvdisasm, of the toolkit or as $NVDISASM names it (tests/gpu/requirements.txt has a
# package).
set -euo pipefail

if [ $# -lt 2 ]; then
  echo "usage: same_sass.sh OLD-FOLDER NEW-FOLDER [NAME...]" >&2
  exit 2
fi
old=$1 new=$2
shift 2
nvdisasm=${NVDISASM:-$(command -v nvdisasm || echo /usr/local/cuda/bin/nvdisasm)}
if [ ! -x "$nvdisasm" ]; then
  echo "found no nvdisasm: $nvdisasm" >&2
  exit 2
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The instructions of a cubin, one a line, and labels, without addresses and names of files.
instructions_of() {
  "$nvdisasm" -c "$1" | sed -nE 's,^[[:space:]]*/\*[0-9a-f]+\*/[[:space:]]+(.*;).*,\1,p; /^\.L_/p' |
    sed -E 's/[[:space:]]+/ /g'
}

# The numbers of each instruction that is watched: products, exponentials, what waits and what spills.
watched='HGMMA|MUFU|FFMA|FMUL|FADD|F2FP|SHFL|BAR|SYNCS|LDGSTS|UTMALDG|LDS|STS|LDL|STL|R2UR|WARPSYNC'
counts_of() {
  grep -oE "^(@!?U?P[0-9T]+ )?($watched)\b" "$1" | sed -E 's/^@[^ ]+ //' | sort | uniq -c
}

registers_of() { # what ptxas said, where its log is there
  sed -nE 's/.*Used ([0-9]+) registers.*/\1 registers/p' "${1%.cubin}.log" 2>/dev/null || true
}

names=("$@")
if [ ${#names[@]} -eq 0 ]; then
  mapfile -t names < <(find "$old" "$new" -name '*.cubin' -exec basename {} .cubin \; | sort -u)
fi
if [ ${#names[@]} -eq 0 ]; then
  echo "no cubin in $old or $new"
  exit 1
fi
differ=0
for name in "${names[@]}"; do
  for side in old new; do
    file=${!side}/$name.cubin
    if [ ! -e "$file" ]; then
      echo "missing  $file"
      differ=$((differ + 1))
      continue 2
    fi
    instructions_of "$file" >"$work/$side"
    { counts_of "$work/$side" || true; registers_of "$file"; } >"$work/$side.counts"
  done
  before=$(grep -vc '^\.L_' "$work/old" || true)
  after=$(grep -vc '^\.L_' "$work/new" || true)
  if [ "$before" -eq 0 ] || [ "$after" -eq 0 ]; then
    echo "nothing  $name: no instructions found in it"
    differ=$((differ + 1))
  elif cmp -s "$work/old" "$work/new"; then
    echo "same     $name: $before instructions"
  else
    echo "differs  $name: $before instructions, now $after"
    diff "$work/old.counts" "$work/new.counts" | sed -nE 's/^([<>]) +/         \1 /p' || true
    differ=$((differ + 1))
  fi
done
echo "${#names[@]} cubins, $differ not the same"
[ "$differ" -eq 0 ]
