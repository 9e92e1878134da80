#!/usr/bin/env python3
"""Writes the tables of docs/plans.md from what `extattn plan` says.

    scripts/plan_table.py EXTATTN [--check] [FILE]

FILE (docs/plans.md) has a line beginning "<!-- plans:" and one "<!-- end of plans -->"; what stands
between them is replaced, or with --check only compared.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- plans:", "<!-- end of plans -->"

DIMS = [(64, 64), (96, 96), (128, 128), (192, 128), (256, 256), (512, 512), (576, 512)]


# Latent attention is called with its values inside its keys.
LATENT = (576, 512)


def plans(extattn, dim, dim_v):
    command = [extattn, "plan", "--head-dim", str(dim), "--head-dim-v", str(dim_v), "--arch", "all", "--json"]
    if (dim, dim_v) == LATENT:
        command += ["--shared-kv", "--heads", "128/1"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def write_tables(extattn):
    parts = []
    for dim, dim_v in DIMS:
        name = f"D = {dim}" + (f", Dv = {dim_v}" if dim_v != dim else "")
        name += ", values inside the keys" if (dim, dim_v) == LATENT else ""
        lines = [
            f"### {name}",
            "",
            "| arch | kernel | M | N | stages | at most | bytes needed | allowed |",
            "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        ]
        for p in plans(extattn, dim, dim_v):
            kernel = p["kernel"].removesuffix("_bf16")
            numbers = [p["tile_m"], p["tile_n"], p["stages"], p["max_stages"]]
            sizes = [f"{p['smem_bytes']:,}", f"{p['smem_limit_bytes']:,}"]
            lines.append("| " + " | ".join([p["arch"], kernel, *map(str, numbers), *sizes]) + " |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("extattn")
    parser.add_argument("file", nargs="?", type=Path, default=ROOT / "docs/plans.md")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()

    text = args.file.read_text()
    begin, end = text.find(BEGIN), text.find(END)
    if begin < 0 or end < begin:
        sys.exit(f"{args.file}: found no lines {BEGIN} ... and {END}")
    begin = text.index("\n", begin) + 1
    new = text[:begin] + "\n" + write_tables(args.extattn) + "\n\n" + text[end:]
    if args.check:
        if new != text:
            sys.exit(f"{args.file}: the tables are not what extattn plan says; scripts/plan_table.py EXTATTN writes them")
    else:
        args.file.write_text(new)


if __name__ == "__main__":
    main()
