"""torch's attention: cuDNN's and FlashAttention-2's on a GPU, its own on a CPU."""

import contextlib
import functools
import importlib

import torch

from peer.calls import Calls, Unsupported, first_that_runs, repeated_heads


def sdpa_dense(backend, case, sets, repeated):
    """One sequence."""
    from torch.nn.attention import sdpa_kernel

    attention = torch.nn.functional.scaled_dot_product_attention
    options = {"is_causal": True}
    if not repeated:
        options["enable_gqa"] = case.num_q_heads > case.num_kv_heads

    def call(s):
        keys = repeated_heads(case, s) if repeated else (s.k, s.v)
        q, k, v = (t.transpose(0, 1).unsqueeze(0) for t in (s.q, *keys))

        def run():
            with sdpa_kernel(backend) if backend else contextlib.nullcontext():
                return attention(q, k, v, **options)

        return run

    return Calls([call(s) for s in sets], lambda out: out[0].transpose(0, 1))


def sdpa_nested(backend, case, sets):
    """Several sequences as one nested tensor, which torch gives no groups of heads."""
    from torch.nn.attention import sdpa_kernel

    attention = torch.nn.functional.scaled_dot_product_attention

    def call(s):
        offsets, ends = s.qo_indptr.to(torch.int64), {"min_seqlen": min(case.extends), "max_seqlen": max(case.extends)}
        q, k, v = (torch.nested.nested_tensor_from_jagged(t, offsets, **ends).transpose(1, 2)
                   for t in (s.q, *repeated_heads(case, s)))  # fmt: skip

        def run():
            with sdpa_kernel(backend):
                return attention(q, k, v, is_causal=True)

        return run

    return Calls([call(s) for s in sets], lambda out: out.transpose(1, 2).values())


def cudnn_packed(case, sets, repeated):
    """torch's operator on packed sequences."""
    longest = max(case.extends)

    def call(s):
        k, v = repeated_heads(case, s) if repeated else (s.k, s.v)
        # No bias; no logsumexp, dropout 0, causal, no debug mask.
        arguments = (s.q, k, v, None, s.qo_indptr, s.qo_indptr, longest, longest, False, 0.0, True, False)
        return lambda: torch.ops.aten._cudnn_attention_forward(*arguments)[0]

    return Calls([call(s) for s in sets], lambda out: out)


def fa2_packed(case, sets):
    """torch's operator on packed sequences."""
    longest = max(case.extends)

    def call(s):
        # Dropout 0, causal, no debug mask.
        arguments = (s.q, s.k, s.v, s.qo_indptr, s.qo_indptr, longest, longest, 0.0, True, False)
        return lambda: torch.ops.aten._flash_attention_forward(*arguments)[0]

    return Calls([call(s) for s in sets], lambda out: out)


def fa2_varlen(case, sets):
    """The same through torch's public function, which checks more and is newer."""
    varlen = importlib.import_module("torch.nn.attention.varlen")
    longest = max(case.extends)

    def call(s):
        arguments = (s.q, s.k, s.v, s.qo_indptr, s.qo_indptr, longest, longest)
        return lambda: varlen.varlen_attn(*arguments, window_size=(-1, 0))

    return Calls([call(s) for s in sets], lambda out: out)


def sdpa_peer(backend, packed, case, sets):
    """packed: ways to run several sequences, name to function of case and sets."""
    if case.prefix or case.window:
        raise Unsupported("no prefix in slots, no window")
    if case.seqs > 1 and not packed:
        raise Unsupported("one sequence")
    if case.seqs == 1:
        groups = functools.partial(sdpa_dense, backend, case, sets)
        return first_that_runs({"groups": lambda: groups(False), "K and V repeated": lambda: groups(True)})
    calls = first_that_runs({name: functools.partial(make, case, sets) for name, make in packed.items()})
    if backend.name == "CUDNN_ATTENTION":  # in torch 2.11, from cudaStreamEndCapture
        calls.no_graph = "torch's cuDNN operator for several sequences ends the process when it is captured"
    return calls


def packed_ways(backends):
    """How cuDNN and FlashAttention-2 take several sequences, the best way first."""
    nested = "nested tensors, K and V repeated"
    cudnn = {
        "packed": functools.partial(cudnn_packed, repeated=False),
        "packed, K and V repeated": functools.partial(cudnn_packed, repeated=True),
        nested: functools.partial(sdpa_nested, backends.CUDNN_ATTENTION),
    }
    fa2 = {
        "packed": fa2_packed,
        "varlen_attn": fa2_varlen,
        nested: functools.partial(sdpa_nested, backends.FLASH_ATTENTION),
    }
    return cudnn, fa2


def loop_peer(case, sets):
    """A sequence at a time, with a mask: does every shape, and says what is right on a CPU."""
    attention = torch.nn.functional.scaled_dot_product_attention
    groups = case.num_q_heads // case.num_kv_heads

    def one(s, b):
        new = slice(s.qo_indptr_host[b], s.qo_indptr_host[b + 1])
        slots = s.slots[s.kv_indptr_host[b] : s.kv_indptr_host[b + 1]].long()
        k, v = torch.cat([s.k_pool[slots], s.k[new]]), torch.cat([s.v_pool[slots], s.v[new]])
        position = case.prefix + torch.arange(case.extends[b], device=s.q.device).unsqueeze(1)
        key = torch.arange(len(k), device=s.q.device)
        visible = key <= position
        if case.window:
            visible &= position <= key + case.window
        q, k, v = (t.transpose(0, 1).unsqueeze(0) for t in (s.q[new], k, v))
        k, v = (t.repeat_interleave(groups, dim=1) for t in (k, v))
        return attention(q, k, v, attn_mask=visible)[0].transpose(0, 1)

    def call(s):
        return lambda: torch.cat([one(s, b) for b in range(case.seqs)])

    return Calls([call(s) for s in sets], lambda out: out)
