#!/usr/bin/env bash
# Installs a build: scripts/install.sh BUILD-FOLDER PREFIX. Where that is done as root, for this machine and not for a
# package (DESTDIR), programs find the library at once: the loader's cache is made anew, as packages do it.
set -euo pipefail
build=${1:?usage: scripts/install.sh BUILD-FOLDER PREFIX} prefix=${2:?usage: scripts/install.sh BUILD-FOLDER PREFIX}

cmake --install "$build" --prefix "$prefix"
if [ -z "${DESTDIR:-}" ] && [ "$(id -u)" -eq 0 ]; then
  PATH=$PATH:/usr/sbin:/sbin # su leaves them out
  ! command -v ldconfig >/dev/null || ldconfig
fi
