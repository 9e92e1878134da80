"""Host overhead of one call: an empty batch on the CPU, so that nothing is computed.

    python tests/python/overhead.py [--bound MICROSECONDS]

prints the best of several repetitions for numpy arrays and, where it is there, for torch tensors;
with a bound, exits 1 when torch's (or numpy's, without torch) is above it. What the GPU adds (asking for the
stream, a workspace, the launch) is measured by tests/python/test_gpu.py.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import timeit

import numpy as np

import extattn


def arrays(tokens: int):
    q = np.zeros((tokens, 8, 64), np.float32)
    kv = np.zeros((tokens, 2, 64), np.float32)
    pool = np.zeros((16, 2, 64), np.float32)
    indptr = np.array([0, tokens], np.int32)
    return [q, kv, kv.copy(), pool, pool.copy(), indptr, np.zeros(2, np.int32), np.zeros(0, np.int32)]


def measure(args, out) -> float:
    def call():
        extattn.extend_attention(*args, out=out)

    call()
    # Short repetitions, the best of many: what else the machine does is not measured.
    return min(timeit.repeat(call, number=100, repeat=300)) / 100 * 1e6


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bound", type=float)
    bound = parser.parse_args().bound
    args = arrays(0)
    us = measure(args, np.zeros((0, 8, 64), np.float32))
    print(f"numpy: {us:.2f} us a call")
    if importlib.util.find_spec("torch"):
        import torch

        # All are zeros; from_numpy would give those without elements strides of 0, which torch's own do not have.
        tensors = [torch.from_numpy(x).new_zeros(x.shape) for x in args]
        us = measure(tensors, torch.zeros(0, 8, 64))
        print(f"torch: {us:.2f} us a call")
    if bound and us > bound:
        print(f"overhead: found {us:.2f} us, allowed {bound}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
