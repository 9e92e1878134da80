"""FlashInfer's batch prefill."""

import importlib

import torch

from peer.calls import Calls, Unsupported, first_that_runs, slots_of, whole_pool


def flashinfer_peer(case, sets):
    try:
        flashinfer = importlib.import_module("flashinfer")
    except (ImportError, OSError) as error:
        raise Unsupported(str(error)) from error
    workspace = torch.empty(512 << 20, dtype=torch.uint8, device="cuda")
    common = {"causal": True, "window_left": case.window or -1, "q_data_type": sets[0].q.dtype}

    def plain(s):
        wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(workspace, "NHD")
        wrapper.plan(s.qo_indptr, s.qo_indptr, case.num_q_heads, case.num_kv_heads, case.head_dim,
                     head_dim_vo=case.head_dim_v, **common)  # fmt: skip
        return lambda: wrapper.run(s.q, s.k, s.v)

    def paged(s):
        k_pool, v_pool, new_slots = whole_pool(s)
        last = torch.ones(case.seqs, dtype=torch.int32, device="cuda")
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")
        wrapper.plan(s.qo_indptr, s.qo_indptr + s.kv_indptr, torch.cat(slots_of(case, s, new_slots)), last,
                     case.num_q_heads, case.num_kv_heads, case.head_dim, 1, **common)  # fmt: skip
        return lambda: wrapper.run(s.q, (k_pool.unsqueeze(1), v_pool.unsqueeze(1)))

    # Plans share the workspace, so there is one, for the first set.
    name, call = ("paged", paged) if case.prefix else ("packed", plain)
    return first_that_runs({name: lambda: Calls([call(sets[0])], lambda out: out)})
