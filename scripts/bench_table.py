#!/usr/bin/env python3
"""Writes the tables of docs/performance.md from the records under bench/results.

    scripts/bench_table.py [--check] [FILE]

FILE (docs/performance.md) has a line beginning "<!-- performance:" and one "<!-- end of performance -->";
what stands between them is replaced, or with --check only compared. A record is what `extattn
bench SUITE --output`, bench/peers.py, bench_cpu or bench/cpu/compare_torch.py wrote; of records
that tell the same (kind, suite, device, threads) only the newest is shown, and none whose shapes
were shrunk. Nothing is shown that was not recorded, and no time of a peer that differs so much from
run to run that it is its host's: that is said under the table.
"""

import argparse
import json
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- performance:", "<!-- end of performance -->"

SUITES = {
    "torch": "On a CPU, beside torch",
    "peak": "On a CPU, beside the peak of its instructions",
    "cpu": "On a CPU",
    "seed": "No prefix, causal, 16,384 tokens",
    "window": "Sliding window",
    "mla": "Latent attention",
    "prefix": "A prefix in shuffled single slots",
    "ragged": "A ragged batch, and a short prompt",
    "chunks": "A chunk of 8,192 after a growing prefix, in single slots",
    "verify": "Few new tokens after a long prefix",
    "replay": "A request trace",
}
MEMORY_BOUND = {"verify"}  # judged by bytes a second
PEERS = {
    "torch": "torch",
    "best triton": "SGLang's Triton, best depth",
    "cudnn": "cuDNN",
    "fa2": "FlashAttention-2",
    "fa3": "FlashAttention-3",
    "best fa3_vllm": "vLLM's FlashAttention-3",
    "flashinfer": "FlashInfer",
}
# A median so many times the minimum tells what the host does and not the kernel, whose times differ by a fifth at most.
# bench/peers.py tries to measure such calls in a graph.
WIDE = 1.5


def shape(case):
    dims = f"{case['head_dim']}" + (f"/{case['head_dim_v']}" if case["head_dim_v"] not in (0, case["head_dim"]) else "")
    new = f"1 to {case['extend']}" if case.get("ragged") else f"{case['extend']}"
    tokens = f"{case['seqs']} x ({case['prefix']}+{new})" if case["prefix"] else f"{case['seqs']} x {new}"
    window = f", window {case['window']}" if case["window"] > 0 else ""
    slots = ", ordered" if case.get("slots") == "ordered" else ""
    return f"{case['dtype']} {dims}, {case['num_q_heads']}/{case['num_kv_heads']}, {tokens}{window}{slots}"


def table(header, rows):
    # The first column is text, the others are numbers.
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def ms(value):
    return f"{value:.3f}" if value < 10 else f"{value:.1f}"


def origin(record, device, threads):
    where = device["name"] + (f", {threads} thread{'s' * (threads > 1)}" if threads else "")
    method = record["method"]
    versions = ", ".join(f"{k} {v}" for k, v in record.get("versions", {}).items() if k not in ("extattn", "python"))
    rounds = method.get("rounds", 1)
    turns = f" in each of {rounds} turns" if rounds > 1 else ""
    rested = f", rested {method['pause_s']:g} s before each" if method.get("pause_s") else ""
    return (
        f"{where}; {record['date'][:10]}, commit {record.get('commit', 'unknown')[:12]}; "
        f"median of {method['repeats']} after {method['warm_up']}{turns}{rested} by {method['clock']}"
        + (f"; {versions}" if versions else "")
    )


def bench_sections(record):
    """One suite at several pipeline depths."""
    device = record["device"]
    on_cpu = device["type"] == "cpu"
    by_shape = {}
    for row in record["rows"]:
        if "median_ms" in row or "error" in row:
            by_shape.setdefault(shape(row), {})[row["stages_asked"]] = row
    depths = sorted({d for row in by_shape.values() for d in row}, key=lambda d: (d == 0, d))
    rows = []
    for name, row in by_shape.items():
        cells = [ms(row[d]["median_ms"]) if d in row and "median_ms" in row[d] else "does not fit" for d in depths]
        best = row.get(0, {})
        memory_bound = record.get("memory_bound")
        rate = f"{best['gbytes_per_s']:.0f}" if memory_bound else f"{best['tflops']:.{2 if on_cpu else 0}f}"
        rows.append([name, *cells, rate if "median_ms" in best else ""])
    heads = ["ms" if on_cpu else f"depth {d} ms" if d else "chosen depth ms" for d in depths]
    unit = "GB/s" if record.get("memory_bound") else "TFLOP/s"
    key = ("bench", record["suite"], device["name"], device["threads"] if on_cpu else 0)
    yield key, table(["shape", *heads, unit], rows), origin(record, device, key[3])


def is_wide(row):
    return row["median_ms"] > WIDE * row.get("min_ms", row["median_ms"])


def rows_of(case, peer):
    """A peer's rows that have times; "best triton": those of each depth, and so on."""
    family = peer.removeprefix("best ")
    is_one = (lambda name: name.startswith(family)) if family != peer else (lambda name: name == peer)
    return [row for name, row in case["results"].items() if is_one(name) and "median_ms" in row]


def best_of(rows):
    """The fastest of those whose times are their kernels'."""
    return min((row for row in rows if not is_wide(row)), key=lambda row: row["median_ms"], default=None)


def times_over_ours(case, peer):
    rows = rows_of(case, peer)
    best = best_of(rows)
    if best is None:
        return "left out" if rows else ""
    return f"{best['median_ms'] / case['results']['extattn']['median_ms']:.2f}x"


def left_out(cases, name, peer):
    """Why cells of a column are left out; nothing, where none are."""
    all_rows = [rows_of(case, peer) for case in cases]
    widths = sorted(min(row["median_ms"] / row["min_ms"] for row in rows) for rows in all_rows if rows and not best_of(rows))
    if not widths:
        return []
    graphs = {str(row.get("graph", "")) for rows in all_rows for row in rows if is_wide(row)}
    reasons = sorted(reason.removeprefix("no: ") for reason in graphs if reason.startswith("no: "))
    why = f"; no graph of it: {'; '.join(reasons)}" if reasons else ""
    width = f"{widths[0]:.0f} to {widths[-1]:.0f}" if len(widths) > 1 else f"{widths[0]:.0f}"
    return [f"{name} is left out of {len(widths)} row{'s' * (len(widths) > 1)}: its median is {width} times its minimum, "
            f"so that it tells the host's time and not the kernel's{why}."]  # fmt: skip


def peer_sections(record):
    """Ours beside others, in one process on the same tensors."""
    device = record["device"]
    threads = device["threads"] if record["method"]["clock"] == "host" else 0
    for suite in dict.fromkeys(case["suite"] for case in record["cases"]):
        cases = [case for case in record["cases"] if case["suite"] == suite]
        peers = [p for p in PEERS if any(rows_of(case, p) for case in cases)]
        rows = []
        for case in cases:
            ours = case["results"]["extattn"]
            if "median_ms" not in ours or is_wide(ours):
                continue
            cells = [times_over_ours(case, p) for p in peers]
            tflops = f"{ours['tflops']:.{2 if threads else 0}f}"
            rate = f"{ours['gbytes_per_s']:.0f}" if suite in MEMORY_BOUND else tflops
            rows.append([shape(case["case"]), ms(ours["median_ms"]), rate, *cells])
        family = record.get("family", "auto")
        key = ("peers" if family == "auto" else f"peers {family}", suite, device["name"], threads)
        unit = "GB/s" if suite in MEMORY_BOUND else "TFLOP/s"
        heads = ["shape", "ms", unit, *(f"{PEERS[p]} takes" for p in peers)]
        notes = left_out(cases, "extattn", "extattn") + [note for p in peers for note in left_out(cases, PEERS[p], p)]
        yield key, "\n\n".join([table(heads, rows), *notes]), origin(record, device, threads)


def replay_sections(record):
    """A trace at several pipeline depths."""
    device, trace = record["device"], record["trace"]
    on_cpu = device["type"] == "cpu"
    rows = []
    for row in record["rows"]:
        chosen = f"chosen, {row['stages']}" if "stages" in row else "chosen"
        depth = f"{row['stages_asked']}" if row["stages_asked"] else chosen
        if "median_ms" not in row:
            rows.append([depth, "does not fit", "", ""])
            continue
        share = f"{100 * row['ceiling_share']:.0f} %" if row["ceiling_share"] else ""
        rows.append([depth, f"{row['median_ms']:.0f}", f"{row['tflops']:.{2 if on_cpu else 0}f}", share])
    first = record["rows"][0]
    heads = f"{first['dtype']} {first['head_dim']}, {first['num_q_heads']}/{first['num_kv_heads']}"
    key = ("bench", "replay", device["name"], device["threads"] if on_cpu else 0)
    source = (
        f"{trace['file']}, {trace['requests']} requests as {trace['batches']} batches of at most {trace['budget']:,} "
        f"new tokens, {heads}, prefixes in shuffled single slots; {origin(record, device, key[3])}"
    )
    yield key, table(["depth", "ms", "TFLOP/s", "of a large product"], rows), source


def tokens_shape(row):
    return shape(row | {"head_dim_v": 0, "seqs": 1, "prefix": row.get("prefix", 0), "extend": row["tokens"], "window": 0})


def torch_sections(record):
    """The CPU backend and torch's attention, in turns."""
    rows = [
        [tokens_shape(r), str(r["threads"]), f"{r['extattn']['gflops']:.0f}", f"{r['torch']['gflops']:.0f}", f"{r['ratio']:.2f}x"]
        for r in record["results"]
    ]
    method = record["method"]
    source = (
        f"{record['processor']}; {record['date'][:10]}, commit {record['commit'][:12]}; "
        f"medians of {method['repeats']} after {method['warm_up']}, in turns; torch {record['versions']['torch']}"
    )
    heads = ["shape", "threads", "GFLOP/s", "torch GFLOP/s", "torch takes"]
    yield ("torch", "torch", record["processor"], 0), table(heads, rows), source


# The instruction that each kind of kernel lives on, as bench_cpu names its peak.
PEAK_OF = {"amx": "tdpbf16ps", "avx512_bf16": "vdpbf16ps", "avx512": "fma_avx512", "avx2": "fma_avx2"}


def peak_sections(record):
    """The CPU backend and the measured peak of the instruction that it uses."""
    peaks = {row["threads"]: row for row in record["peaks"]}
    rows = []
    for r in record["results"]:
        name = next((PEAK_OF[isa] for isa in PEAK_OF if r["kernel"].startswith(isa)), None)
        peak = peaks[r["threads"]].get(f"{name}_gflops")
        # A peak that attention itself passed was measured while the machine was slower: no peak.
        known = peak is not None and peak > r["gflops"]
        share = [f"{peak:.0f}", f"{100 * r['gflops'] / peak:.0f} %"] if known else ["not known", ""]
        rows.append([tokens_shape(r), str(r["threads"]), r["kernel"], f"{r['gflops']:.0f}", *share])
    source = f"{record['processor']}; {record['date'][:10]}, commit {record['commit'][:12]}; medians of {record['repeats']}"
    heads = ["shape", "threads", "kernel", "GFLOP/s", "peak", "of the peak"]
    # One record for each instruction set that was forced.
    kinds = "+".join(sorted({r["kernel"] for r in record["results"]}))
    yield ("peak", "peak", record["processor"], kinds), table(heads, rows), source


def kind_of(record):
    if record.get("shrink", 1) > 1:
        return None
    if "cases" in record:
        return peer_sections
    if "peaks" in record:
        return peak_sections
    if "results" in record and "torch" in record.get("versions", {}):
        return torch_sections
    if record.get("command") == "bench":
        return replay_sections if record["suite"] == "replay" else bench_sections
    return None


def newest_records(folder):
    """What is told (kind, suite, device, threads) to the newest that tells it: (date, table, origin, path, record)."""
    newest = {}
    for path in sorted(folder.rglob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        make = kind_of(record)
        if make is None:
            continue
        for key, text, source in make(record):
            if key not in newest or newest[key][0] < record["date"]:
                newest[key] = (record["date"], text, source, path, record)
    return newest


def sections(folder):
    order = list(SUITES)
    return sorted(newest_records(folder).items(), key=lambda item: (order.index(item[0][1]), tuple(map(str, item[0]))))


def performance(folder, page):
    """page: the file that will hold it, from which its links go."""
    found = sections(folder)
    if not found:
        return "No measurement is recorded yet.\n"
    parts = ["A shape is type, head dimension, query/key-value heads, sequences x (prefix + new) tokens. "
             "Peers ran in the same process on the same tensors; \"2.00x\" is twice our time. "
             "Times are those of the commit under a table, and kernels may have changed since. A GPU's clock follows "
             "its load and heat: the same shape differs by up to a tenth from table to table, and within one whose turns begin without a rest."]  # fmt: skip
    for (kind, suite, _, _), (_, text, source, path, _) in found:
        beside, _, family = kind.partition(" ")
        of = f", the {family} kernels beside others" if family else ", beside others"
        title = SUITES[suite] + (of if beside == "peers" else "")
        parts += [f"### {title}", text, f"{source}; [record]({os.path.relpath(path, page.parent)})."]
    return "\n\n".join(parts) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail when the file is out of date")
    parser.add_argument("file", nargs="?", type=Path, default=ROOT / "docs" / "performance.md")
    args = parser.parse_args()

    text = args.file.read_text(encoding="utf-8")
    begin, end = text.index("\n", text.index(BEGIN)) + 1, text.index(END)
    fresh = text[:begin] + "\n" + performance(ROOT / "bench" / "results", args.file.resolve()) + "\n" + text[end:]
    if args.check and fresh != text:
        sys.exit(f"{args.file}: its tables are not those of bench/results; run scripts/bench_table.py")
    if not args.check:
        args.file.write_text(fresh, encoding="utf-8")


if __name__ == "__main__":
    main()
