#!/usr/bin/env python3
"""Measures extattn next to other attention kernels: one process, the same tensors.

    bench/peers.py --library build/libextattn.so --command build/extattn \\
        --sglang sglang-0.5.18-*.whl --suite seed --commit HASH --json seed.json

Peers, each left out with a reason where it is not installed or cannot do a shape:

    triton1, triton2, triton3   SGLang's extend_attention at pipeline depths 1, 2 and 3. Taken from
                                SGLang's wheel (or a folder with its files); only num_stages is set
    cudnn, fa2                  one sequence: torch's scaled_dot_product_attention with that backend;
                                several: torch's operators for packed sequences, or nested tensors
    fa3                         FlashAttention-3 (the package fa3-fwd, or flash_attn_interface)
    fa3_vllm                    FlashAttention-3 as vLLM builds it, with pages, split keys, windows and
                                latent attention: one shared object of vLLM's wheel (--vllm-fa3). A prefix
                                comes in pages of one token; where its slots are in order, fa3_vllm_16 and
                                fa3_vllm_64 have it in pages of so many
    flashinfer                  FlashInfer's batch prefill
    before                      another build of ours (--before), for what a change costs

Every peer's output is compared with ours. The peers take turns: in each of --rounds every one has
--warm-up runs and then --repeats runs that count. Before each turn the GPU rests for --pause seconds:
work near its power limit slows it down within tenths of a second (an H200 at head dimension 256 from
5.1 ms to 6.0, ours and FlashAttention-3 alike), so that otherwise a peer's time depends on who had the
turn before it, and a slow one is a rest for the next. Times are medians of the runs of all rounds,
by CUDA events, over rotating copies of the tensors so that no run finds its input in the L2 cache.
Times are to be the GPU's, not the host's: the GPU is kept busy while runs are enqueued, and captured graphs
are replayed where a batch is ragged (ours too), where a call takes the host more than a millisecond, and where
the median is more than 1.5 times the minimum. The record says so ("graph": true), or why not ("no: ...");
scripts/bench_table.py leaves out what stays so wide.
The shapes come from `extattn bench SUITE --list`. The record is written after each case.

On a CPU (--device cpu) the peers are torch: its attention where it does the shape, and a sequence
at a time, which does all of them. --shrink makes any suite small enough for that.
"""

import argparse
import contextlib
import datetime
import functools
import importlib.metadata
import json
import math
import os
import platform
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
from peer import fa3, fa3_vllm, flash_infer, ours, sglang_triton, timing, torch_sdpa
from peer.calls import Unsupported, one_line
from peer.cases import Case, make_sets, make_tensors

MAX_DIFFERENCE = 1e-2  # relative Frobenius norm between two bf16 results; each is some 2.3e-3 from float64
DEPTHS = (1, 2, 3, 0)  # 0: automatic


# ---- measuring ---------------------------------------------------------------------------------


def rates(case, row):
    return {"tflops": case.flop / row["median_ms"] * 1e-9, "gbytes_per_s": case.bytes / row["median_ms"] * 1e-6}


def with_round_before(before, row, case):
    """A peer's row of this round and of those before; why there is none, where it failed in one."""
    for one in (before, row):
        if one is not None and ("wrong" in one or "times_ms" not in one):
            return one
    if before is None:
        return row
    row = row | timing.summary(before["times_ms"] + row["times_ms"])
    return row | rates(case, row)


def difference(a, b):
    """Relative Frobenius norm, in pieces so that float copies stay small."""
    up = down = 0.0
    for x, y in zip(a.split(1024), b.split(1024)):
        x, y = x.float(), y.float()
        up += (x - y).pow(2).sum(dtype=torch.float64).item()
        down += y.pow(2).sum(dtype=torch.float64).item()
    return math.sqrt(up / down)  # NaN stays NaN


def disagreement(row, out, reference):
    """Why a result is wrong, or nothing; the difference goes into the row."""
    if reference is None:
        return None if bool(torch.isfinite(out).all()) else "not finite"
    if out.shape != reference.shape:
        return f"shape {tuple(out.shape)}, expected {tuple(reference.shape)}"
    row["difference"] = difference(out, reference)
    if row["difference"] <= MAX_DIFFERENCE:
        return None
    return f"relative difference {row['difference']:.2e}, allowed {MAX_DIFFERENCE:.0e}"


def check_and_measure(peer, case, sets, args, reference):
    """The row of a peer that runs, and the reference, which is the first result."""
    row = {}
    gpu = args.device == "cuda"
    peer.run(0)
    if gpu:
        torch.cuda.synchronize()
    out = peer.result()
    wrong = disagreement(row, out, reference)
    if wrong:
        row["wrong"] = wrong
    if reference is None:
        reference = out.clone()
    del out
    row |= peer.details()
    if gpu:
        torch.cuda.synchronize()
        time.sleep(args.pause)
        row |= timing.measure_on_gpu(peer.run, len(sets), args, getattr(peer, "no_graph", ""), case.ragged)
    else:
        row |= timing.measure_on_cpu(peer.run, args.warm_up, args.repeats)
    return row | rates(case, row), reference


def measure_peer(name, prepare, case, sets, args, reference):
    """A row of the result: times, or why there are none. Ours, without a reference, becomes it."""
    peer = None
    try:
        peer = prepare(case, sets)
        return check_and_measure(peer, case, sets, args, reference)
    except Unsupported as reason:
        return {"unsupported": one_line(reason)}, reference
    except Exception as error:  # a peer that fails keeps none of the others from being measured
        row = {"unsupported": f"{type(error).__name__}: {one_line(error)}"}
        if name.startswith("extattn"):
            row["wrong"] = row["unsupported"]
        return row, reference
    finally:
        if peer:
            peer.close()


def peers_of(args, extattn, sglang):
    """Name to prepare(case, sets), ours first."""
    depths = DEPTHS if args.device == "cuda" and not args.only_auto else (0,)
    peers = {f"extattn{d or ''}": functools.partial(lambda d, case, sets: extattn.prepare(case, sets, d), d)
             for d in sorted(depths)}  # fmt: skip
    others = cpu_peers() if args.device == "cpu" else gpu_peers(sglang, args.vllm_fa3)
    if args.before:
        before = ours.Extattn(args.before, args.device, args.threads, args.family)
        others["before"] = lambda case, sets: before.prepare(case, sets, 0)
    unknown = set(args.peer or ()) - set(others)
    if unknown:
        sys.exit(f"--peer: found {', '.join(sorted(unknown))}, allowed {', '.join(others)}")
    return peers | {name: prepare for name, prepare in others.items() if not args.peer or name in args.peer}


def cpu_peers():
    return {"torch": functools.partial(torch_sdpa.sdpa_peer, None, {}), "loop": torch_sdpa.loop_peer}


def gpu_peers(sglang, vllm_fa3):
    from torch.nn.attention import SDPBackend

    at_depth = functools.partial(sglang_triton.triton_peer, sglang[0]) if sglang else missing_sglang
    triton = {f"triton{stages}": functools.partial(at_depth, stages) for stages in (1, 2, 3)}
    cudnn, fa2 = torch_sdpa.packed_ways(SDPBackend)
    return triton | {
        "cudnn": functools.partial(torch_sdpa.sdpa_peer, SDPBackend.CUDNN_ATTENTION, cudnn),
        "fa2": functools.partial(torch_sdpa.sdpa_peer, SDPBackend.FLASH_ATTENTION, fa2),
        "fa3": fa3.fa3_peer,
        "fa3_vllm": functools.partial(fa3_vllm.fa3_vllm_peer, vllm_fa3, 1),
        "fa3_vllm_16": functools.partial(fa3_vllm.fa3_vllm_peer, vllm_fa3, 16),
        "fa3_vllm_64": functools.partial(fa3_vllm.fa3_vllm_peer, vllm_fa3, 64),
        "flashinfer": flash_infer.flashinfer_peer,
    }


def missing_sglang(_stages, _case, _sets):
    raise Unsupported("no --sglang given")


def ratios(rows):
    """Their time over ours, automatic depth: above 1 we are faster."""
    ours = rows["extattn"].get("median_ms")
    result = {}
    if ours is None:
        return result
    for name, row in rows.items():
        if not name.startswith("extattn") and "median_ms" in row:
            result[name] = row["median_ms"] / ours
    for family in ("triton", "fa3_vllm"):
        theirs = [value for name, value in result.items() if name.startswith(family)]
        if theirs:
            result[f"best {family}"] = min(theirs)
    return result


def print_case(case, rows, ratio):
    print(f"\n{case.name()}")
    for name, row in rows.items():
        if "unsupported" in row:
            print(f"  {name:11} -  {row['unsupported'][:100]}" + ("  WRONG" if "wrong" in row else ""))
            continue
        against = f"{ratio[name]:6.2f}x ours" if name in ratio else ""
        wrong = f"  WRONG: {row['wrong']}" if "wrong" in row else ""
        wrong += f"  WIDE: least {row['min_ms']:.3f} ms, graph {row.get('graph')}" if timing.is_wide(row) else ""
        depth = f"  depth {row['stages']}" if "stages" in row else f"  {row['way']}" if "way" in row else ""
        rate = f"{row['tflops']:9.1f} TFLOP/s" if row["tflops"] >= 1 else f"{1e3 * row['tflops']:9.1f} GFLOP/s"
        print(f"  {name:11}{row['median_ms']:10.3f} ms{rate}{row['gbytes_per_s']:8.0f} GB/s  {against}{depth}{wrong}")
    sys.stdout.flush()


def measure_case(case, peers, args):
    sets = make_sets(case, args.device)
    rows, reference = {}, None
    for _ in range(args.rounds):
        for name, prepare in peers.items():
            if name in rows and "times_ms" not in rows[name]:
                continue  # it cannot run
            row, reference = measure_peer(name, prepare, case, sets, args, reference)
            rows[name] = with_round_before(rows.get(name), row, case)
            if args.device == "cuda":
                torch.cuda.empty_cache()
    ratio = ratios(rows)
    print_case(case, rows, ratio)
    return {"case": case.record(), "results": rows, "times_over_ours": ratio}


# ---- the whole ---------------------------------------------------------------------------------


def cases_of(args):
    cases = []
    for suite in args.suite:
        command = [args.command, "bench", suite, "--list", "--shrink", str(args.shrink)]
        listed = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        for entry in listed["cases"]:
            cases.append((suite, Case(**entry)))
    return quick_ones(cases) if args.quick else cases


def quick_ones(cases):
    """Of each suite the shapes with 16 query heads, or its first three where it has none."""
    chosen = []
    for suite in dict.fromkeys(suite for suite, _ in cases):
        mine = [entry for entry in cases if entry[0] == suite]
        chosen += [entry for entry in mine if entry[1].num_q_heads == 16] or mine[:3]
    return chosen


def compile_ahead(args, count):
    """Triton compiles in a process of its own for each case, all at once, into its cache on disk."""

    def compile_one(index):
        command = [sys.executable, __file__, *sys.argv[1:], "--compile-case", str(index)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    start = time.monotonic()
    with ThreadPoolExecutor(max(1, min(count, (os.cpu_count() or 2) // 2))) as pool:
        answers = list(pool.map(compile_one, range(count)))
    for index, answer in enumerate(answers):
        if answer.returncode != 0:
            print(f"compiling case {index} ahead: {(answer.stderr.strip().splitlines() or ['failed'])[-1]}")
    print(f"compiled ahead in {time.monotonic() - start:.0f} s", flush=True)


def compile_case(case, sglang):
    case = case.shortened()
    sets = [make_tensors(case, "cuda", 0)]
    for stages in (1, 2, 3):
        with contextlib.suppress(Unsupported):
            sglang_triton.triton_peer(sglang[0], stages, case, sets)


def versions(extattn, sglang, vllm_fa3):
    found = {"extattn": extattn.version, "python": platform.python_version(), "torch": torch.__version__}
    for package in ("triton", "fa3-fwd", "flash-attn-3", "flashinfer-python"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    if torch.cuda.is_available():
        found["cuda"] = torch.version.cuda
        found["cudnn"] = torch.backends.cudnn.version()
    if sglang:
        found["sglang"] = sglang[1]
    if vllm_fa3:
        found["vllm"] = vllm_fa3[1]
    return found


def driver_text():
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return answer.stdout.strip().splitlines()[0]


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", type=Path, default=Path("build/libextattn.so"))
    parser.add_argument("--command", type=Path, default=Path("build/extattn"), help="for the lists of shapes")
    suites = "seed (default), window, mla, prefix, ragged, chunks, verify, cpu (default on a CPU); may be repeated"
    parser.add_argument("--suite", action="append", help=suites)
    parser.add_argument("--peer", action="append", metavar="NAME", help="only this one beside ours; may be repeated")
    parser.add_argument("--shrink", type=int, default=1, help="divide the tokens of each shape by this, to try it out")
    parser.add_argument("--before", type=Path, help="another build's libextattn.so, as one more peer")
    parser.add_argument("--only-auto", action="store_true", help="ours at the automatic depth alone")
    parser.add_argument("--sglang", help="SGLang's wheel, or a folder that holds its files")
    parser.add_argument("--vllm-fa3", help="vLLM's wheel, or the _vllm_fa3_C.abi3.so in it")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    families = ["auto", "cpu", "portable", "hopper"]
    parser.add_argument("--family", choices=families, default="auto", help="of our kernels")
    parser.add_argument("--threads", type=int, default=0, help="of a CPU; 0: all")
    parser.add_argument("--rounds", type=int, default=4, help="the peers take turns, so often")
    parser.add_argument("--warm-up", type=int, default=2, help="runs before those that count, in each round")
    parser.add_argument("--pause", type=float, default=0.25, help="seconds of rest before each turn, on a GPU")
    parser.add_argument("--repeats", type=int, default=4, help="runs that count, in each round")
    parser.add_argument("--quick", action="store_true", help="fewer shapes, within a minute")
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--compile-case", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.pause < 0:
        parser.error(f"--pause: found {args.pause}, allowed 0 or more")
    if args.vllm_fa3 and not Path(args.vllm_fa3).is_file():
        parser.error(f"--vllm-fa3: found no file {args.vllm_fa3}")
    if args.device == "cpu":
        args.pause = 0.0
    args.suite = args.suite or ["cpu" if args.device == "cpu" else "seed"]
    args.library, args.command = args.library.resolve(), args.command.resolve()
    args.before = args.before and args.before.resolve()
    return args


def main():
    args = parse()
    if args.device == "cuda" and not torch.cuda.is_available():
        print("skipped: torch sees no GPU")
        return 77
    if args.threads:
        torch.set_num_threads(args.threads)
    cases = cases_of(args)

    sglang = None
    wants_triton = not args.peer or any(name.startswith("triton") for name in args.peer)
    if args.sglang and args.device == "cuda" and wants_triton:
        try:
            sglang = sglang_triton.sglang_modules(args.sglang)
        except (Unsupported, ImportError, OSError) as error:
            print(f"SGLang is left out: {error}")
    if args.compile_case is not None:
        compile_case(cases[args.compile_case][1], sglang)
        return 0
    if sglang:
        compile_ahead(args, len(cases))
    args.vllm_fa3 = fa3_vllm.vllm_fa3_library(args.vllm_fa3) if args.vllm_fa3 and args.device == "cuda" else None

    extattn = ours.Extattn(args.library, args.device, args.threads, args.family)
    info = extattn.device_info()
    peers = peers_of(args, extattn, sglang)
    record = head_of(args, info, versions(extattn, sglang, args.vllm_fa3))
    print(f"{info.name.decode()}, {info.arch.decode()}; {record['versions']}")
    for suite, case in cases:
        record["cases"].append({"suite": suite} | measure_case(case, peers, args))
        if args.json:
            args.json.write_text(json.dumps(record, indent=1) + "\n")

    results = record["cases"]
    wrong = [f"{r['suite']}: {n}" for r in results for n, row in r["results"].items() if "wrong" in row]
    print(f"\n{len(results)} cases, {len(wrong)} disagreements {wrong if wrong else ''}")
    return 1 if wrong else 0


def head_of(args, info, found_versions):
    """The record without its cases."""
    return {
        "what": "extattn and its peers",
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": args.commit,
        "family": args.family,
        "device": {"name": info.name.decode(), "arch": info.arch.decode(), "threads": info.num_threads},
        "driver": driver_text() if args.device == "cuda" else None,
        "versions": found_versions,
        "method": {"rounds": args.rounds, "pause_s": args.pause, "warm_up": args.warm_up, "repeats": args.repeats,
                   "statistic": "median", "clock": "CUDA events" if args.device == "cuda" else "host"},
        "shrink": args.shrink,
        "cases": [],
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
