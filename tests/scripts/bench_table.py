#!/usr/bin/env python3
"""scripts/bench_table.py on records of each suite that are small enough to be read: bench_table.py SOURCE-DIR"""

import importlib.util
import json
import sys
import tempfile
from pathlib import Path

DEVICE = {"type": "cuda", "name": "a card", "arch": "sm_90", "threads": 0}
METHOD = {"warm_up": 4, "repeats": 12, "clock": "CUDA events"}
HEAD = {"date": "2026-01-02T03:04:05Z", "commit": "0123456789abcdef", "device": DEVICE, "method": METHOD}
SHAPE = {"dtype": "bf16", "head_dim": 64, "head_dim_v": 64, "num_q_heads": 16, "num_kv_heads": 8, "window": 0,
         "seqs": 64, "prefix": 0, "extend": 2048, "ragged": True, "slots": "shuffled"}  # fmt: skip
CHUNK = SHAPE | {"head_dim": 512, "head_dim_v": 512, "seqs": 1, "prefix": 8192, "extend": 8192, "ragged": False}
ORDERED = CHUNK | {"slots": "ordered"}
OLD = {name: value for name, value in CHUNK.items() if name not in ("ragged", "slots")}  # before there were such
FAST = {"median_ms": 1.5, "tflops": 250.4, "gbytes_per_s": 1000.4}


def bench(suite, shape, **more):
    rows = [shape | FAST | {"stages_asked": 0}, shape | {"stages_asked": 3, "error": "does not fit"}]
    return HEAD | {"command": "bench", "suite": suite, "memory_bound": suite == "verify", "rows": rows} | more


def peers(suite, shape, **more):
    results = {"extattn": FAST, "cudnn": {"unsupported": "packed: no"}, "fa3": {"median_ms": 3.0}}
    cases = [{"suite": suite, "case": shape, "results": results, "times_over_ours": {"fa3": 2.0}}]
    return HEAD | {"cases": cases} | more


def wide(**more):
    """cuDNN's times of one shape are its host's."""
    record = peers("ragged", SHAPE)
    record["cases"][0]["results"]["cudnn"] = {"median_ms": 72.0, "min_ms": 2.4} | more
    return record


def replay():
    trace = {"file": "t.jsonl", "requests": 100, "batches": 180, "budget": 8192}
    row = {"dtype": "bf16", "head_dim": 128, "num_q_heads": 32, "num_kv_heads": 8, "stages_asked": 0, "stages": 3}
    measured = row | {"median_ms": 1200.4, "tflops": 380.1, "ceiling_share": 0.484}
    rows = [row | {"stages_asked": 4, "error": "does not fit"}, measured]
    return HEAD | {"command": "bench", "suite": "replay", "trace": trace, "rows": rows}


# The same shapes, later, by another family than the one that is chosen: no newer record of that.
BOTH_FAMILIES = [peers("seed", SHAPE, family="auto"), peers("seed", SHAPE, family="portable", date="2026-02-01T00:00:00Z")]
ROUNDS = METHOD | {"rounds": 4, "warm_up": 2, "repeats": 3}

# Of its ways the fastest whose times are a kernel's.
VLLM = peers("prefix", SHAPE)
VLLM["cases"][0]["results"] = {"extattn": FAST, "fa3_vllm": {"median_ms": 1.5, "min_ms": 1.4}, "fa3_vllm_16": {"median_ms": 1.2},
                               "fa3_vllm_64": {"median_ms": 1.1, "min_ms": 0.1}}  # fmt: skip

# Record, or several, and a line that must be in the section.
CASES = [
    (bench("ragged", SHAPE), "| bf16 64, 16/8, 64 x 1 to 2048 | does not fit | 1.500 | 250 |"),
    (bench("chunks", ORDERED), "| bf16 512, 16/8, 1 x (8192+8192), ordered | does not fit | 1.500 | 250 |"),
    (bench("verify", OLD), "| bf16 512, 16/8, 1 x (8192+8192) | does not fit | 1.500 | 1000 |"),
    (peers("ragged", SHAPE), "| bf16 64, 16/8, 64 x 1 to 2048 | 1.500 | 250 | 2.00x |"),
    (peers("chunks", CHUNK), "| bf16 512, 16/8, 1 x (8192+8192) | 1.500 | 250 | 2.00x |"),
    (peers("verify", OLD), "| bf16 512, 16/8, 1 x (8192+8192) | 1.500 | 1000 | 2.00x |"),
    (wide(), "| bf16 64, 16/8, 64 x 1 to 2048 | 1.500 | 250 | left out | 2.00x |"),
    (wide(), "\n\ncuDNN is left out of 1 row: its median is 30 times its minimum, so that it tells the host's time and not "
             "the kernel's.\n"),
    (wide(graph="no: it crashes"), "the kernel's; no graph of it: it crashes.\n"),
    (wide(min_ms=60.0), "| bf16 64, 16/8, 64 x 1 to 2048 | 1.500 | 250 | 48.00x | 2.00x |"),
    (VLLM, "| shape | ms | TFLOP/s | vLLM's FlashAttention-3 takes |"),
    (VLLM, "| bf16 64, 16/8, 64 x 1 to 2048 | 1.500 | 250 | 0.80x |"),
    (BOTH_FAMILIES, "### No prefix, causal, 16,384 tokens, beside others\n"),
    (BOTH_FAMILIES, "; [record](../record1.json).\n"),
    (BOTH_FAMILIES, "### No prefix, causal, 16,384 tokens, the portable kernels beside others\n"),
    (peers("ragged", SHAPE, method=ROUNDS), "; median of 3 after 2 in each of 4 turns by CUDA events"),
    (replay(), "| chosen, 3 | 1200 | 380 | 48 % |"),
    (replay(), "| 4 | does not fit |  |  |"),
    (replay(), "t.jsonl, 100 requests as 180 batches of at most 8,192 new tokens, bf16 128, 32/8, "),
    (bench("ragged", SHAPE, shrink=64), "No measurement is recorded yet."),
]


def main():
    spec = importlib.util.spec_from_file_location("bench_table", Path(sys.argv[1]) / "scripts" / "bench_table.py")
    table = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(table)
    failures = 0
    for record, line in CASES:
        with tempfile.TemporaryDirectory() as folder:
            table.ROOT = Path(folder)
            for i, one in enumerate(record if isinstance(record, list) else [record]):
                (table.ROOT / f"record{i}.json").write_text(json.dumps(one), encoding="utf-8")
            written = table.performance(table.ROOT, table.ROOT / "docs" / "page.md")
        if line not in written:
            failures += 1
            print(f"expected: {line}\nwritten: {written}")
    print(f"{len(CASES)} records, {failures} failed")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
