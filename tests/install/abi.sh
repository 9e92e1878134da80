#!/usr/bin/env bash
# The shared library exports exactly the header's EA_API functions, carries the soname that
# the header's version asks for, and needs neither CUDA nor C++. In the static library,
# whose inner names cannot be hidden, every name begins ea_:
#
#     abi.sh HEADER SHARED STATIC CC
set -euo pipefail
header=$1 shared=$2 static=$3 cc=$4
failed=0
fail() {
  echo "$*" >&2
  failed=1
}

declared=$("$cc" -E -P -DEA_API=EA_API_HERE "$header" | tr '\n' ' ' | grep -o 'EA_API_HERE [^(;]*(' |
  sed 's/.*[ *]\([a-z0-9_]*\)($/\1/' | sort)
exported=$(nm -D --defined-only "$shared" | awk '{ print $3 }' | sort)
[ "$(wc -l <<<"$declared")" -ge 10 ] || fail "$header: found only these functions: $declared"
if [ "$declared" != "$exported" ]; then
  fail "exported (>) is not what the header declares (<):"
  diff <(echo "$declared") <(echo "$exported") >&2 || true
fi

inner=$(nm --defined-only --extern-only "$static" | awk 'NF == 3 { print $3 }' | grep -v '^ea_' | sort -u || true)
[ -z "$inner" ] || fail "names in the static library that do not begin ea_: $inner"

version() { sed -n "s/^#define EA_VERSION_$1 \([0-9]*\)$/\1/p" "$header"; }
soname=libextattn.so.$(version MAJOR)
[ "$(version MAJOR)" -ne 0 ] || soname=libextattn.so.0.$(version MINOR)
dynamic=$(readelf --dynamic --wide "$shared")
grep -q "SONAME.*\[$soname\]" <<<"$dynamic" || fail "soname: found $(grep SONAME <<<"$dynamic"), expected $soname"

mapfile -t needed < <(sed -n 's/.*(NEEDED).*\[\(.*\)\]$/\1/p' <<<"$dynamic")
for library in "${needed[@]}"; do
  case $library in
  libc.so.6 | libm.so.6 | libdl.so.2 | libpthread.so.0 | libgomp.so.1 | libomp.so.5 | ld-linux-*) ;;
  *) fail "needs $library; only the C library and OpenMP are allowed" ;;
  esac
done
echo "$(wc -l <<<"$exported") functions, $soname, needs ${needed[*]}"
exit $failed
