#!/usr/bin/env bash
# scripts/same_sass.sh with a disassembler that prints what is in the "cubin": same_sass.sh SOURCE-DIR
set -euo pipefail
script=$1/scripts/same_sass.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
mkdir old new
# shellcheck disable=SC2016 # the stand-in's own argument
printf '#!/bin/sh\ncat "$2"\n' >nvdisasm
chmod +x nvdisasm
export NVDISASM=$work/nvdisasm

program() { # ADDRESS LINE...: a disassembly that begins at an address
  local address=$1 line
  shift
  echo "	.section .text.k"
  for line in "$@"; do
    printf '        /*%04x*/                   %s ;  /* 0x0 */\n' "$address" "$line"
    address=$((address + 16))
  done
}
says() { # PATTERN: of the last run
  grep -qE "$1" out || { echo "expected: $1"; cat out; exit 1; }
}

program 0 "MOV R1, c[0x0][0x28]" "HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8]" "EXIT" >old/a.sm_90a.cubin
program 64 "MOV R1, c[0x0][0x28]" "HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8]" "EXIT" >new/a.sm_90a.cubin
"$script" old new >out || { cat out; exit 1; }
says '^same +a\.sm_90a: 3 instructions$'

program 0 "MOV R1, c[0x0][0x28]" "@P0 HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8]" "MUFU.EX2 R0, R0" "EXIT" >old/b.sm_90a.cubin
program 0 "MOV R1, c[0x0][0x28]" "MUFU.EX2 R0, R0" "EXIT" >new/b.sm_90a.cubin
echo "ptxas info : Used 168 registers, 16 barriers" >old/b.sm_90a.log
echo "ptxas info : Used 170 registers, 16 barriers" >new/b.sm_90a.log
if "$script" old new >out; then echo "a kernel that differs passed"; exit 1; fi
says '^differs +b\.sm_90a: 4 instructions, now 3$'
says '^ +< 1 HGMMA$'
says '^ +> 170 registers$'
says '^2 cubins, 1 not the same$'

rm new/b.sm_90a.cubin
if "$script" old new >out; then echo "a kernel that is missing passed"; exit 1; fi
says '^missing +new/b\.sm_90a\.cubin$'

: >new/b.sm_90a.cubin
if "$script" old new b.sm_90a >out; then echo "a kernel without instructions passed"; exit 1; fi
says '^nothing +b\.sm_90a'
mkdir none
if "$script" none none >out; then echo "no kernels at all passed"; exit 1; fi
says 'no cubin'
