"""FlashAttention-3 as its own package builds it."""

import functools
import importlib

import torch

from peer.calls import Calls, Unsupported, first_that_runs, slots_of, whole_pool


@functools.cache
def fa3_interface():
    for name in ("flash_attn_interface", "fa3_fwd_interface", "flash_attn_3.flash_attn_interface"):
        try:
            return importlib.import_module(name)
        except (ImportError, OSError) as error:
            reason = f"{name}: {error}"
    raise Unsupported(reason)


def fa3_peer(case, sets):
    fa3 = fa3_interface()
    if case.head_dim > 256:
        raise Unsupported("head dimensions up to 256")
    longest = max(case.extends)
    options = {"causal": True, "window_size": (case.window, 0) if case.window else (-1, -1)}

    def plain(s):
        q, k, v = (t.unsqueeze(0) for t in (s.q, s.k, s.v))
        return lambda: fa3.flash_attn_func(q, k, v, **options)

    def packed(s):
        arguments = {
            "q": s.q, "k": s.k, "v": s.v, "cu_seqlens_q": s.qo_indptr, "cu_seqlens_k": s.qo_indptr,
            "max_seqlen_q": longest, "max_seqlen_k": longest,
        } | options  # fmt: skip
        return lambda: fa3.flash_attn_varlen_func(**arguments)

    def paged(s):
        k_pool, v_pool, new_slots = whole_pool(s)
        lengths = [case.prefix + extend for extend in case.extends]
        arguments = {
            "q": s.q, "k_cache": k_pool.unsqueeze(1), "v_cache": v_pool.unsqueeze(1),
            "cache_seqlens": torch.tensor(lengths, dtype=torch.int32, device=s.q.device),
            "page_table": torch.nn.utils.rnn.pad_sequence(slots_of(case, s, new_slots), batch_first=True),
            "cu_seqlens_q": s.qo_indptr, "max_seqlen_q": longest,
        } | options  # fmt: skip
        return lambda: fa3.flash_attn_with_kvcache(**arguments)

    def shape(out):
        out = out[0] if isinstance(out, tuple) else out
        return out.reshape(sum(case.extends), case.num_q_heads, case.head_dim_v)

    name, call = ("paged", paged) if case.prefix else ("packed", packed) if case.seqs > 1 else ("one", plain)
    return first_that_runs({name: lambda: Calls([call(s) for s in sets], shape)})
