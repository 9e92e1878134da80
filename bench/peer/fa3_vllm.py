"""FlashAttention-3 as vLLM builds it: one shared object of its wheel, called without the rest of vLLM.

It does packed sequences, keys in pages, split keys, windows, and latent attention with the latent part of the queries
apart (q_v).
"""

import functools
import hashlib
import itertools
import sys
import tempfile
import zipfile
from pathlib import Path

import torch

from peer.calls import Calls, Unsupported, first_that_runs, slots_of, whole_pool

VLLM_FA3 = "_vllm_fa3_C.abi3.so"


def vllm_fa3_library(source):
    """(file, version) of the shared object; source: it, or vLLM's wheel."""
    path = Path(source)
    if not zipfile.is_zipfile(path):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        return path.resolve(), f"{VLLM_FA3} sha256 {digest[:12]}"
    with zipfile.ZipFile(path) as wheel:
        names = [name for name in wheel.namelist() if name.endswith("/" + VLLM_FA3)]
        if not names:
            sys.exit(f"--vllm-fa3: found no {VLLM_FA3} in {source}")
        return Path(wheel.extract(names[0], tempfile.mkdtemp(prefix="vllm-"))), path.name.split("-")[1]


@functools.cache
def vllm_fa3_forward(path):
    torch.ops.load_library(str(path))
    return torch.ops._vllm_fa3_C.fwd


def in_pages(case, s, page_size):
    """K and V of all tokens in pages, [pages, page_size, Hkv, D], and the table of each sequence's pages. Pages of
    one token stay where they are; longer ones hold each sequence's tokens in order, for which its slots have to be."""
    k_pool, v_pool, new_slots = whole_pool(s)
    tables = slots_of(case, s, new_slots)
    if page_size > 1:
        # Each sequence's rows, and zeros up to a whole page, one sequence behind the other.
        pages = [-(-len(slots) // page_size) for slots in tables]
        rows = torch.cat([torch.nn.functional.pad(slots, (0, count * page_size - len(slots)), value=-1)
                          for slots, count in zip(tables, pages)]).long()  # fmt: skip
        k_pool, v_pool = (pool[rows].masked_fill_((rows < 0)[:, None, None], 0) for pool in (k_pool, v_pool))
        first = [0, *itertools.accumulate(pages)]
        tables = [torch.arange(begin, begin + count, dtype=torch.int32, device=rows.device)
                  for begin, count in zip(first, pages)]  # fmt: skip
    if case.shared_kv:
        v_pool = k_pool[..., : case.head_dim_v]
    k_pages, v_pages = (pool.unflatten(0, (-1, page_size)) for pool in (k_pool, v_pool))
    return k_pages, v_pages, torch.nn.utils.rnn.pad_sequence(tables, batch_first=True)


def fa3_vllm_arguments(case, s, page_size):
    """By the names of vLLM's operator; what is not here is None or as in FA3_VLLM_DEFAULTS."""
    longest = max(case.extends)
    arguments = {
        "q": s.q, "cu_seqlens_q": s.qo_indptr, "max_seqlen_q": longest, "max_seqlen_k": case.prefix + longest,
        "scale": case.head_dim**-0.5, "window_left": case.window or -1, "window_right": 0 if case.window else -1,
    }  # fmt: skip
    if case.prefix:
        k, v, arguments["page_table"] = in_pages(case, s, page_size)
        lengths = [case.prefix + extend for extend in case.extends]
        arguments["seqused_k"] = torch.tensor(lengths, dtype=torch.int32, device=s.q.device)
    else:
        k, v, arguments["cu_seqlens_k"] = s.k, s.v, s.qo_indptr
    if case.shared_kv:  # the rope columns are its keys, the latent ones its values and more of its queries
        latent = case.head_dim_v
        arguments["q"], arguments["q_v"], k = s.q[..., latent:], s.q[..., :latent], k[..., latent:]
    return arguments | {"k": k, "v": v}


# The operator takes no names; this is its order.
FA3_VLLM_ORDER = """q k v k_new v_new q_v out cu_seqlens_q cu_seqlens_k cu_seqlens_k_new seqused_q seqused_k
    max_seqlen_q max_seqlen_k page_table kv_batch_idx leftpad_k rotary_cos rotary_sin seqlens_rotary q_descale
    k_descale v_descale scale causal window_left window_right softcap rotary_interleaved scheduler_metadata
    num_splits pack_gqa sm_margin s_aux cp_world_size cp_rank cp_tot_seqused_k""".split()
# num_splits 0: it chooses.
FA3_VLLM_DEFAULTS = {"causal": True, "softcap": 0.0, "rotary_interleaved": False, "num_splits": 0, "sm_margin": 0,
                     "cp_world_size": 1, "cp_rank": 0}  # fmt: skip


def fa3_vllm_peer(library, page_size, case, sets):
    if not library:
        raise Unsupported("no --vllm-fa3 given")
    if page_size > 1 and not (case.prefix and case.slots == "ordered"):
        raise Unsupported(f"pages of {page_size} are for a prefix in ordered slots")
    if case.head_dim > 256 and not case.shared_kv:
        raise Unsupported("head dimensions up to 256")
    forward = vllm_fa3_forward(library[0])

    def call(s):
        given = FA3_VLLM_DEFAULTS | fa3_vllm_arguments(case, s, page_size)
        arguments = [given.get(name) for name in FA3_VLLM_ORDER]
        return lambda: forward(*arguments)[0]

    way = f"pages of {page_size}" if case.prefix else "packed"
    return first_that_runs({way: lambda: Calls([call(s) for s in sets], lambda out: out)})
