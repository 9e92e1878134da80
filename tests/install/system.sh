#!/usr/bin/env bash
# What the README says of `make install`, under /usr/local as it stands there: its program is compiled by its own line
# and runs, with no variable set. In a view of the file system that is this test's own, so nothing is changed:
# system.sh SOURCE-DIR BUILD-DIR
set -euo pipefail
source=$1 build=$2

if [ "${3:-}" != inside ]; then
  if ! unshare --map-root-user --mount true 2>/dev/null; then
    echo "skipped: no file system of its own for a test here (unshare)"
    exit 77
  fi
  for tool in cmake cc pkg-config; do
    case $(command -v $tool) in
    /usr/local/*) echo "skipped: $tool lies under /usr/local, which this test hides" && exit 77 ;;
    esac
  done
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  mkdir "$work/etc" "$work/cache"
  cp -a /etc/. "$work/etc" 2>/dev/null || true # what only root may read is not needed
  unset LD_LIBRARY_PATH PKG_CONFIG_PATH DESTDIR
  unshare --map-root-user --mount "$0" "$source" "$build" inside "$work"
  exit
fi

work=$4
mount -t tmpfs tmpfs /usr/local
mount --bind "$work/etc" /etc
[ ! -d /var/cache/ldconfig ] || mount --bind "$work/cache" /var/cache/ldconfig
if ldconfig -p | grep libextattn; then
  echo "a library is there before it is installed" >&2
  exit 1
fi
"$source/scripts/install.sh" "$build" /usr/local >"$work/log" || { cat "$work/log" >&2 && exit 1; }

cd "$work"
# shellcheck disable=SC2016 # backticks of the README
sed -n '/^```c$/,/^```$/p' "$source/README.md" | sed '1d;$d' >program.c
# shellcheck disable=SC2016 # as it is written there
line=$(grep -o '`cc [^`]*program\.c[^`]*`' "$source/README.md" | tr -d '`')
echo "\$ $line && ./a.out"
eval "$line"
./a.out
ldd ./a.out | grep '/usr/local/lib.*/libextattn.so'
