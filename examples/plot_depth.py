"""Pipeline depth against speed on a GPU, as a plot: one line a head dimension.

    python plot_depth.py [OUTPUT.svg] [--tokens 8192] [--head-dims 64,128,256,512]

Draws with matplotlib where it is there, and prints the table in any case.
"""

from __future__ import annotations

import argparse
import sys

import torch

import extattn


def milliseconds(call, repeats: int = 12, warm_up: int = 4) -> float:
    times = []
    for i in range(warm_up + repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        end.synchronize()
        if i >= warm_up:
            times.append(start.elapsed_time(end))
    return sorted(times)[repeats // 2]


def speeds(dim: int, tokens: int) -> dict[int, float]:
    """TFLOP/s of a causal prefill by depth; the deepest is the last that fits."""
    q_heads, kv_heads = 32, 4
    q = torch.randn(tokens, q_heads, dim, dtype=torch.bfloat16, device="cuda")
    k = torch.randn(tokens, kv_heads, dim, dtype=torch.bfloat16, device="cuda")
    v = torch.randn_like(k)
    pool = torch.zeros(1, kv_heads, dim, dtype=torch.bfloat16, device="cuda")
    ends = torch.tensor([0, tokens], dtype=torch.int32, device="cuda")
    none = torch.zeros(2, dtype=torch.int32, device="cuda")
    out = torch.empty_like(q)
    flops = 2 * 2 * dim * q_heads * tokens * (tokens + 1) / 2
    found: dict[int, float] = {}
    for stages in range(1, 33):
        try:
            ms = milliseconds(
                lambda s=stages: extattn.extend_attention(q, k, v, pool, pool, ends, none, none[:0], out=out, stages=s)
            )
        except extattn.DoesNotFitError as reason:
            print(f"  depth {stages}: {reason}")
            break
        found[stages] = flops / ms / 1e9
        print(f"  depth {stages}: {ms:8.3f} ms {found[stages]:7.0f} TFLOP/s")
    return found


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("output", nargs="?", default="depth.svg")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--head-dims", default="64,128,256,512")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("device: found no GPU; a pipeline's depth is a GPU's. What would fit on an H200:")
        for dim in map(int, options.head_dims.split(",")):
            plan = extattn.plan(num_q_heads=32, num_kv_heads=4, head_dim=dim, device="sm_90")
            print(f"  head_dim {dim}: depth {plan.stages} chosen, {plan.max_stages} at most; {plan.reason}")
        return 0
    results = {}
    for dim in map(int, options.head_dims.split(",")):
        print(f"head_dim {dim}, {options.tokens} tokens:")
        results[dim] = speeds(dim, options.tokens)
    try:
        from matplotlib import pyplot
    except ImportError:
        print("no plot: matplotlib is not installed")
        return 0
    for dim, found in results.items():
        pyplot.plot(list(found), list(found.values()), marker="o", label=f"head_dim {dim}")
    pyplot.xlabel("pipeline depth (key/value tiles in flight)")
    pyplot.ylabel("TFLOP/s")
    pyplot.title(f"{torch.cuda.get_device_name()}: causal prefill, {options.tokens} tokens, bf16")
    pyplot.legend()
    pyplot.savefig(options.output)
    print(f"plot: {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
