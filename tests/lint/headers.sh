#!/usr/bin/env bash
# Every header of the kernels compiles alone, for both element types and in a recording build: headers.sh SOURCE-DIR
# BUILD-DIR CC. By nvcc where it is found, otherwise by the C++ compiler as the emulator has it.
set -euo pipefail
cd "$1"
. tests/lint/files.sh
mapfile -t headers < <(source_files 'src/cuda/kernels/*.h' 'src/cuda/kernels/*/*.h' | sort -u)
if [ ${#headers[@]} -eq 0 ]; then
  echo "found no header in src/cuda/kernels" >&2
  exit 1
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
if [ -x "$nvcc" ]; then
  compile=("$nvcc" -ptx -arch=compute_90a -x cu --Werror all-warnings -o /dev/null)
  by=nvcc
else
  compile=("${CXX:-c++}" -fsyntax-only -x c++ -Wno-psabi -Itests/emulator/include -Itests/emulator
    -include tests/emulator/include/emulated.h)
  by=${CXX:-c++}
fi
bad=0
for header in "${headers[@]}"; do
  echo "#include \"${header#src/}\"" >"$work/alone.cu"
  for define in EA_TYPE_F16 EA_TYPE_BF16 EA_TRACE; do
    if ! "${compile[@]}" -D$define -std=c++17 -Iinclude -Isrc "$work/alone.cu" >"$work/log" 2>&1; then
      echo "does not compile alone: $header (-D$define)"
      head -n 5 "$work/log"
      bad=$((bad + 1))
    fi
  done
done
echo "${#headers[@]} headers, by $by"
[ "$bad" -eq 0 ]
