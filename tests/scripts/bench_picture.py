#!/usr/bin/env python3
"""scripts/bench_picture.py on records that are small enough to be read: bench_picture.py SOURCE-DIR"""

import json
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

METHOD = {"warm_up": 4, "repeats": 12, "clock": "CUDA events"}
HEAD = {"commit": "0123456789abcdef", "method": METHOD, "family": "auto"}
SHAPE = {"dtype": "bf16", "head_dim": 64, "head_dim_v": 64, "num_q_heads": 16, "num_kv_heads": 8, "window": 0,
         "seqs": 1, "prefix": 0, "extend": 16384, "ragged": False, "slots": "shuffled"}  # fmt: skip
PAGED = SHAPE | {"prefix": 8192, "extend": 512, "seqs": 8}
WINDOW = SHAPE | {"window": 1024, "extend": 27000}


def row(ms, least=None):
    return {"median_ms": ms, "min_ms": least or ms, "tflops": 1000 / ms}


def record(suite, shape, date="2026-01-02T03:04:05Z", device="a card", **rows):
    rows = {name: one if isinstance(one, dict) else row(one) for name, one in rows.items()}
    case = {"suite": suite, "case": shape, "results": rows}
    return HEAD | {"date": date, "device": {"name": device, "arch": "sm_90", "threads": 0}, "cases": [case]}


RECORDS = [
    record("seed", SHAPE, extattn=2.0, fa3=2.5, triton1=9.0, triton2=8.0, cudnn=row(99.0, 2.0), fa2={"unsupported": "why"}),
    record("seed", SHAPE, date="2025-01-01T00:00:00Z", extattn=1.25),  # older
    record("seed", SHAPE, date="2025-01-01T00:00:00Z", device="another card", extattn=1.25),
    record("prefix", PAGED, extattn=4.0, fa3_vllm=row(3.0, 1.0), fa3_vllm_16=3.2),
    record("window", WINDOW, extattn=5.0),
    record("window", WINDOW, date="2027-01-01T00:00:00Z", device="another card", extattn=1.25),
    record("mla", SHAPE, extattn=row(9.0, 1.0), fa3=1.0),  # our own time is none of a kernel
]


def check(found, expected, what):
    if found != expected:
        print(f"{what}: found {found}, expected {expected}")
    return found != expected


def main():
    sys.path.insert(0, str(Path(sys.argv[1]) / "scripts"))
    import bench_picture as picture

    with tempfile.TemporaryDirectory() as folder:
        for i, one in enumerate(RECORDS):
            (Path(folder) / f"record{i}.json").write_text(json.dumps(one), encoding="utf-8")
        found = picture.records(Path(folder))
        drawn = ElementTree.fromstring(picture.draw(found))
        told = picture.describe(found, Path(folder) / "README.md")

    titles = [title.text for title in drawn.iter("{http://www.w3.org/2000/svg}title")]
    texts = [text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")]
    failures = check(titles, [
        "extattn, bf16 64, 16/8, 1 x 16384: 2.000 ms, 500 TFLOP/s",
        "FlashAttention-3, bf16 64, 16/8, 1 x 16384: 2.500 ms, 400 TFLOP/s",
        "SGLang's Triton, best depth, bf16 64, 16/8, 1 x 16384: 8.000 ms, 125 TFLOP/s",
        "extattn, bf16 64, 16/8, 8 x (8192+512): 4.000 ms, 250 TFLOP/s",
        "FlashAttention-3, bf16 64, 16/8, 8 x (8192+512): 3.200 ms, 312 TFLOP/s",
        "extattn, bf16 64, 16/8, 1 x 27000, window 1024: 5.000 ms, 200 TFLOP/s",
    ], "bars")  # fmt: skip
    # Heights are on the one scale, which ends at 600.
    bars = [rect for rect in drawn.iter("{http://www.w3.org/2000/svg}rect") if len(rect)]
    heights = [float(bar.get("height")) for bar in bars]
    wanted = [round(picture.PLOT_HEIGHT * tflops / 600, 1) for tflops in (500, 400, 125, 250, 312.5, 200)]
    failures += check(heights, wanted, "heights")
    for line in ("8×(8k+512)", "1×27000", "16/8, W 1k", "D 64"):
        failures += check(line in texts, True, line)
    failures += check("cuDNN" in texts, False, "a legend of what is not drawn")
    lost = "A peer is faster in 1 of 3 shapes: bf16 64, 16/8, 8 x (8192+512) (FlashAttention-3 takes 0.80 of our time)."
    links = "Records: [no prefix, causal, 16k tokens](record0.json) (2026-01-02, commit 0123456789ab), [a prefix"
    for text in (lost, links):
        failures += check(text in told, True, f"{text} in {told}")
    print(f"{failures} failed")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
