#!/usr/bin/env bash
# The Python package as a user meets it: a fresh virtual environment, `pip install` from this source
# tree (without the CUDA kernels, which take minutes and which these tests do not need), then its
# tests, ruff and mypy:
#
#     run.sh FOLDER COMMAND [PACKAGE...]
#
# FOLDER becomes the environment, COMMAND is the command extattn, for replaying captured calls, and
# PACKAGE what else to install (torch). What the environment needs comes from pip's index; without one
# the tests are skipped.
set -euo pipefail
source=$(cd "$(dirname "$0")/../.." && pwd)
venv=$(realpath -m "$1") command=$(realpath "$2") # from anywhere
shift 2

if ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
  echo "skipped: python3 has no venv (Debian: python3-venv)"
  exit 77
fi
rm -rf "$venv"
python3 -m venv "$venv"
pip=("$venv/bin/python" -m pip --disable-pip-version-check --quiet)
tools=(scikit-build-core pathspec numpy pytest ruff mypy "$@")
if ! "${pip[@]}" install "${tools[@]}" >"$venv/pip.log" 2>&1; then
  tail -n 2 "$venv/pip.log"
  echo "skipped: pip cannot install ${tools[*]}"
  exit 77
fi
"${pip[@]}" install --no-build-isolation --no-deps --config-settings=cmake.define.EA_CUDA=OFF "$source"

cd "$venv" # not in the source tree: the package that was installed is what is to be found
unset EXTATTN_LIBRARY PYTHONPATH
export EXTATTN_COMMAND=$command EXTATTN_SOURCE=$source
"$venv/bin/python" -m pytest -q -rs -p no:cacheprovider "$source/tests/python"
"$venv/bin/python" "$source/tests/python/overhead.py" # said, not judged: the machine may be busy
if [ $# -gt 0 ]; then
  "$venv/bin/python" "$source/examples/chunked_prefill.py"
fi
cd "$source"
"$venv/bin/ruff" check --no-cache python tests/python examples bench
"$venv/bin/ruff" format --no-cache --check python tests/python examples bench
"$venv/bin/mypy" --cache-dir "$venv/mypy"
