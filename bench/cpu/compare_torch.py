#!/usr/bin/env python3
"""Measures the CPU backend next to torch's attention: one process, the same tensors, in turns.

    bench/cpu/compare_torch.py --library build/libextattn.so --threads 1,16 --commit HASH --json torch.json

Causal attention of one sequence without a prefix, the shapes that the speed goals name. Torch
gets [1, heads, tokens, dim] tensors, the layout that it likes best. Every run of ours is
followed by one of torch's, so that both see the same machine; times are medians. Exits 1 where
the results differ by more than rounding. EXTATTN_ISA chooses our instruction set.
"""

import argparse
import datetime
import json
import os
import statistics
import sys
import time
from pathlib import Path

# Both OpenMP runtimes would have idle threads spin, each in the other's way.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from peers import Case, Extattn, difference, make_tensors

MAX_DIFFERENCE = {"bf16": 1e-2, "f16": 2e-3, "f32": 1e-4}


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=Path, required=True)
    parser.add_argument("--threads", default=f"1,{os.cpu_count()}")
    parser.add_argument("--shapes", default="bf16:64:8/8:2048,bf16:128:8/8:2048,bf16:256:8/8:2048,f32:128:8/8:2048",
                        help="TYPE:DIM:HEADS/KV_HEADS:TOKENS, comma separated")  # fmt: skip
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--warm-up", type=int, default=3)
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def case_of(shape):
    dtype, dim, heads, tokens = shape.split(":")
    q_heads, kv_heads = (int(x) for x in heads.split("/"))
    dim, tokens = int(dim), int(tokens)
    flop = 4.0 * dim * tokens * (tokens + 1) / 2 * q_heads
    size = {"bf16": 2, "f16": 2, "f32": 4}[dtype]
    moved = float(size * tokens * dim * 2 * (q_heads + kv_heads))
    return Case(dtype, dim, dim, q_heads, kv_heads, 0, 1, 0, tokens, False, flop, moved)


def torch_call(case, tensors):
    q, k, v = (t.transpose(0, 1).unsqueeze(0).contiguous() for t in (tensors.q, tensors.k, tensors.v))
    options = {"is_causal": True, "enable_gqa": case.num_q_heads != case.num_kv_heads}
    return lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)


def timed(call):
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3


def compare(library, case, threads, args):
    torch.set_num_threads(threads)
    ours = Extattn(library, "cpu", threads)
    tensors = make_tensors(case, "cpu", 1)
    plan = ours.prepare(case, [tensors], 0)
    theirs = torch_call(case, tensors)
    plan.run(0)
    apart = difference(plan.result(), theirs()[0].transpose(0, 1))
    times = {"extattn": [], "torch": []}
    for i in range(args.warm_up + args.repeats):
        pair = timed(lambda: plan.run(0)), timed(theirs)
        if i >= args.warm_up:
            times["extattn"].append(pair[0])
            times["torch"].append(pair[1])
    row = {"dtype": case.dtype, "head_dim": case.head_dim, "num_q_heads": case.num_q_heads,
           "num_kv_heads": case.num_kv_heads, "tokens": case.extend, "threads": threads,
           "kernel": plan.details()["kernel"], "difference": apart,
           "wrong": not apart <= MAX_DIFFERENCE[case.dtype]}  # fmt: skip
    for name, list_of in times.items():
        median = statistics.median(list_of)
        row[name] = {"median_ms": median, "min_ms": min(list_of), "max_ms": max(list_of),
                     "gflops": case.flop / median * 1e-6}  # fmt: skip
    row["ratio"] = row["torch"]["median_ms"] / row["extattn"]["median_ms"]
    plan.close()
    return row, ours.device_info().name.decode()


def main():
    args = parse()
    rows, processor = [], ""
    print("type  dim   heads  tokens threads  kernel         extattn    torch  ratio (GFLOP/s, medians)")
    for shape in args.shapes.split(","):
        for threads in (int(t) for t in args.threads.split(",")):
            row, processor = compare(args.library.resolve(), case_of(shape), threads, args)
            heads = f"{row['num_q_heads']}/{row['num_kv_heads']}"
            print(f"{row['dtype']:5} {row['head_dim']:3} {heads:>7} {row['tokens']:7} {threads:7}  {row['kernel']:12} "
                  f"{row['extattn']['gflops']:9.1f} {row['torch']['gflops']:8.1f} {row['ratio']:6.2f}"
                  f"{'  WRONG' if row['wrong'] else ''}", flush=True)  # fmt: skip
            rows.append(row)
    record = {
        "what": "extattn's CPU backend and torch's scaled_dot_product_attention",
        "processor": processor,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": args.commit,
        "versions": {"torch": torch.__version__},
        "method": {"warm_up": args.warm_up, "repeats": args.repeats, "statistic": "median", "in_turns": True},
        "results": rows,
    }
    if args.json:
        args.json.write_text(json.dumps(record, indent=1) + "\n")
    return 1 if any(row["wrong"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
