"""Children of fork(), as multiprocessing and torch's DataLoader make them, of a parent that has computed."""

from __future__ import annotations

import multiprocessing
import os
import warnings

import numpy as np
import pytest
from conftest import Batch

import extattn

DEADLINE_S = 60

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


def _compute(batch):
    out, lse = extattn.extend_attention(*batch.args(), return_lse=True)
    merged, _ = extattn.merge(out, lse, out, lse)
    return out, lse, merged


def _answer(batch, queue):
    for _ in range(2):
        queue.put([array.tobytes() for array in _compute(batch)])


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_children_answer_with_the_same_bits(dtype):
    batch = Batch(prefix=(40, 0), extend=(30, 20), dtype=dtype)
    wanted = [array.tobytes() for array in _compute(batch)]
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    children = [context.Process(target=_answer, args=(batch, queue), daemon=True) for _ in range(2)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12: a fork with threads around
        for child in children:
            child.start()
    try:
        for _ in range(2 * len(children)):
            assert queue.get(timeout=DEADLINE_S) == wanted
        for child in children:
            child.join(DEADLINE_S)
            assert child.exitcode == 0
    finally:
        for child in children:
            child.kill()
