#!/usr/bin/env python3
"""Case files of many seeds and features, run by the command and by the numpy oracle.

    test_oracle.py EXTATTN

The float64 reference must agree with the oracle to the last rounding, the vectorised backend
to the accuracy that the contract promises.
"""

import os
import shlex
import subprocess
import sys
import tempfile

try:
    import numpy as np
except ImportError:
    print("skipped: numpy is not here; `make test` installs it (in Debian: python3-numpy)")
    sys.exit(77)

from oracle import attend, read_safetensors

# Options of make-case, and how many seeds.
CASES = [
    ("", 2),
    ("--dtype f16 --page-size 16 --slots pages", 2),
    ("--dtype f32 --index-dtype i64", 2),
    ("--cache-dtype e4m3 --k-scale 0.7 --v-scale 1.3", 2),
    ("--cache-dtype e4m3 --k-scale 0.012 --v-scale 0.01", 1),
    ("--cache-dtype e5m2 --k-scale 1.6", 1),
    ("--heads 5/1 --head-dim 80", 1),
    ("--heads 6/3 --head-dim 192 --head-dim-v 128", 1),
    ("--heads 4/1 --head-dim 576 --head-dim-v 512 --shared-kv --seqs 2 --extend 1..16", 1),
    ("--window 17", 2),
    ("--window 17 --mask full", 2),
    ("--mask full", 1),
    ("--mask random", 2),
    ("--mask random --mask-prefix", 2),
    ("--mask random --mask-prefix --mask-offsets --window 40", 3),
    ("--cap 30", 1),
    ("--cap 2.5 --scale 0.5 --dtype f32", 1),
    ("--temperature 16 --dtype f32", 2),
    ("--temperature 3 --cap 20", 1),
    ("--sinks --dtype f16", 2),
    ("--skip-prefix --window 9", 1),
    ("--skip-extend --window 9", 1),
    ("--skip-prefix --skip-extend --seqs 1", 1),
    ("--empty --seqs 6 --sinks", 2),
    ("--seqs 0", 1),
    ("--stale-nan --window 5 --page-size 16", 2),
    ("--stale-nan --empty --mask random --mask-offsets --window 30", 2),
    ("--peaks --dtype f32", 1),
    ("--any", 25),
    ("--any --stale-nan", 15),
]

# Distance of a rounded number from the number, relative to it.
ROUNDING = {"BF16": 2.0**-9, "F16": 2.0**-12, "F32": 2.0**-25}
SMALLEST = {"BF16": 2.0**-134, "F16": 2.0**-25, "F32": 2.0**-150}
# Relative Frobenius norm of the error, and largest error of lse.
OUT_BOUND = {"BF16": 3e-3, "F16": 5e-4, "F32": 1e-5}
LSE_BOUND = {"BF16": 2e-3, "F16": 5e-4, "F32": 1e-5}


class Failure(Exception):
    pass


def command(*args):
    done = subprocess.run(args, capture_output=True, text=True)
    if done.returncode != 0:
        raise Failure(f"{shlex.join(args)}: exit {done.returncode}: {done.stderr.strip()}")


def run(extattn, case, family):
    out = case + ".out"
    command(extattn, "run", case, "-o", out, "--device", "cpu", "--family", family)
    tensors, dtypes, _ = read_safetensors(out)
    os.remove(out)
    return tensors["out"], tensors["lse"], dtypes["out"]


def compare_lse(name, lse, exact, allowed):
    nothing = np.isneginf(exact)
    right = np.where(nothing, np.isneginf(lse), np.abs(lse - np.where(nothing, 0, exact)) <= allowed)
    if not right.all():
        worst = np.unravel_index(np.argmin(right), right.shape)
        raise Failure(f"{name}: lse{list(map(int, worst))} is {lse[worst]}, the oracle says {exact[worst]}")


def compare_reference(out, lse, dtype, exact_out, exact_lse):
    """Equal but for one rounding, and for a little noise of sums in another order before it."""
    allowed = ROUNDING[dtype] * 2 * np.abs(exact_out) * (1 + 1e-6) + SMALLEST[dtype] + 1e-12
    wrong = ~(np.abs(out - exact_out) <= allowed)
    if wrong.any():
        worst = np.unravel_index(np.argmax(wrong), wrong.shape)
        raise Failure(f"reference: out{list(map(int, worst))} is {out[worst]}, the oracle says {exact_out[worst]}")
    compare_lse("reference", lse, exact_lse, 2.0**-24 * np.abs(exact_lse) + 1e-12)


def compare_fast(out, lse, dtype, exact_out, exact_lse, strict):
    slack = 1 if strict else 8  # a case of few numbers, or of unusual scores
    size = np.linalg.norm(exact_out)
    error = np.linalg.norm(out - exact_out) / size if size else np.abs(out).sum()
    if not error <= slack * OUT_BOUND[dtype]:
        raise Failure(f"cpu: relative error {error:.3g} (Frobenius), allowed {slack * OUT_BOUND[dtype]:.3g}")
    compare_lse("cpu", lse, exact_lse, slack * LSE_BOUND[dtype] * (1 + np.abs(exact_lse)))


def check(extattn, directory, options, seed):
    case = os.path.join(directory, "case.safetensors")
    command(extattn, "make-case", "-q", "-o", case, "--seed", str(seed), *options.split())
    exact_out, exact_lse, q_dtype = attend(case)
    out, lse, dtype = run(extattn, case, "reference")
    if dtype != q_dtype or out.shape != exact_out.shape or lse.shape != exact_lse.shape:
        raise Failure(f"out is {dtype} {out.shape}, lse {lse.shape}; q is {q_dtype}, out should be {exact_out.shape}")
    compare_reference(out, lse, dtype, exact_out, exact_lse)
    out, lse, dtype = run(extattn, case, "cpu")
    strict = "--any" not in options and "--peaks" not in options and out.size >= 1000
    compare_fast(out, lse, dtype, exact_out, exact_lse, strict)
    return int(np.isinf(exact_lse).sum()), exact_lse.size


def main():
    extattn = os.path.abspath(sys.argv[1])
    failures = cases = rows = unseeing = 0
    with tempfile.TemporaryDirectory() as directory:
        for options, seeds in CASES:
            for seed in range(1, seeds + 1):
                cases += 1
                try:
                    without, total = check(extattn, directory, options, seed)
                    unseeing, rows = unseeing + without, rows + total
                except Failure as failure:
                    failures += 1
                    print(f"extattn make-case -o case.safetensors --seed {seed} {options}\n  {failure}")
    print(f"{cases} cases, {rows} rows (of one head), {unseeing} of them see nothing; {failures} cases differ")
    return 1 if failures or not unseeing else 0


if __name__ == "__main__":
    sys.exit(main())
