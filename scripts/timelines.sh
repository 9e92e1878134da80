#!/usr/bin/env bash
# Draws the timelines of docs/images: how a work tile ends and the next begins, in each kind of Hopper kernel.
#
#     scripts/timelines.sh EXTATTN FOLDER [TOKENS [NAME...]]
#
# EXTATTN is the command of a build configured with -DEA_TRACE=ON; needs a GPU of the Hopper kind and gnuplot. TOKENS
# (16384): new tokens of the one sequence. NAME: only these, d128, d64, d512, mla.
set -euo pipefail
[ $# -ge 2 ] || { echo "usage: ${0##*/} EXTATTN FOLDER [TOKENS [NAME...]]" >&2 && exit 2; }
extattn=$1 folder=$2 tokens=${3:-16384} names=" ${*:4} "
commit=$(git -C "$(dirname "$0")" rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$folder"

# end_of_first FILE: microseconds until the first consumer of block 0 is through with a work tile.
end_of_first() {
  python3 - "$1" <<'END'
import json
import sys

events = json.load(open(sys.argv[1]))["traceEvents"]
named = [e for e in events if e["name"] == "thread_name" and e["pid"] == 0]
consumer = next(e["tid"] for e in named if e["args"]["name"] == "consumer 0")
print(min(e["ts"] for e in events if e["name"] == "write out" and (e["pid"], e["tid"]) == (0, consumer)))
END
}

# draw NAME LENGTH SHAPE...: LENGTH microseconds, two thirds of them before the end.
draw() {
  local name=timeline-$1 length=$2 from end
  [[ $names =~ ^\ *$ || $names == *" $1 "* ]] || return 0
  "$extattn" trace "${@:3}" --extend "$tokens" --commit "$commit" -o "$work/$name.json" >"$work/$name.txt"
  end=$(end_of_first "$work/$name.json")
  from=$(python3 -c "print(max(0, $end - $length * 2 / 3))")
  "$extattn" plot "$work/$name.json" --from "$from" --length "$length" -o "$folder/$name.svg"
  echo "$folder/$name.svg"
}

draw d128 12 --head-dim 128 --heads 16/8
draw d64 8 --head-dim 64 --heads 16/8
draw d512 24 --head-dim 512 --heads 16/8
draw mla 24 --head-dim 576 --head-dim-v 512 --heads 16/1 --shared-kv
