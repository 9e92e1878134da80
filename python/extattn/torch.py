"""extend_attention and merge as torch operators, for torch.compile and exported graphs.

    torch.ops.extattn.extend_attention(...)      returns (out, lse); lse is empty unless asked for
    torch.ops.extattn.extend_attention_out(...)  writes into out and lse
    torch.ops.extattn.merge(...)                 returns (out, lse)

Registered when this module is imported, which `import extattn` does when torch is already there.
extattn.extend_attention uses them by itself where it is traced.
"""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

import extattn
from extattn import _attention

_OPTIONS = (
    "bool causal=True, float? softmax_scale=None, float logit_cap=0.0, int window_left=-1, "
    "Tensor? sinks=None, Tensor? custom_mask=None, Tensor? mask_indptr=None, Tensor? window_kv_offsets=None, "
    "bool skip_prefix_custom_mask=True, float k_scale=1.0, float v_scale=1.0, int xai_temperature_len=0, "
    "bool skip_prefix=False, bool skip_extend=False, str? family=None, int stages=0"
)
_INPUTS = (
    "Tensor q, Tensor? k, Tensor? v, Tensor k_cache, Tensor v_cache, Tensor qo_indptr, Tensor kv_indptr, "
    "Tensor kv_indices"
)

_library = torch.library.Library("extattn", "DEF")
_library.define(f"extend_attention({_INPUTS}, bool return_lse=False, {_OPTIONS}) -> (Tensor, Tensor)")
_library.define(f"extend_attention_out({_INPUTS}, Tensor(a!) out, Tensor(b!)? lse=None, {_OPTIONS}) -> ()")
_library.define("merge(Tensor out_a, Tensor lse_a, Tensor out_b, Tensor lse_b) -> (Tensor, Tensor)")


def _empty_lse(q: Tensor) -> Tensor:
    return q.new_empty((0,), dtype=torch.float32)


def _extend_attention(
    q: Tensor,
    k: Optional[Tensor],
    v: Optional[Tensor],
    k_cache: Tensor,
    v_cache: Tensor,
    qo_indptr: Tensor,
    kv_indptr: Tensor,
    kv_indices: Tensor,
    return_lse: bool = False,
    *options: Any,
    **named: Any,
) -> tuple[Tensor, Tensor]:
    out, lse = _attention.run(
        q, k, v, k_cache, v_cache, qo_indptr, kv_indptr, kv_indices, None, None, return_lse, *options, **named
    )
    return out, _empty_lse(q) if lse is None else lse


def _extend_attention_out(
    q: Tensor,
    k: Optional[Tensor],
    v: Optional[Tensor],
    k_cache: Tensor,
    v_cache: Tensor,
    qo_indptr: Tensor,
    kv_indptr: Tensor,
    kv_indices: Tensor,
    out: Tensor,
    lse: Optional[Tensor] = None,
    *options: Any,
    **named: Any,
) -> None:
    _attention.run(q, k, v, k_cache, v_cache, qo_indptr, kv_indptr, kv_indices, out, lse, False, *options, **named)


def _merge(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    return _attention.merge_run(out_a, lse_a, out_b, lse_b)


def _fake_extend_attention(
    q: Tensor,
    k: Optional[Tensor],
    v: Optional[Tensor],
    k_cache: Tensor,
    v_cache: Tensor,
    qo_indptr: Tensor,
    kv_indptr: Tensor,
    kv_indices: Tensor,
    return_lse: bool = False,
    *options: Any,
    **named: Any,
) -> tuple[Tensor, Tensor]:
    out = q.new_empty((q.shape[0], q.shape[1], v_cache.shape[-1]))
    lse = q.new_empty((q.shape[0], q.shape[1]), dtype=torch.float32) if return_lse else _empty_lse(q)
    return out, lse


def _fake_extend_attention_out(*arguments: Any, **named: Any) -> None:
    return None


def _fake_merge(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    return out_a.new_empty(out_a.shape), lse_a.new_empty(lse_a.shape)


for _name, _run, _fake in (
    ("extend_attention", _extend_attention, _fake_extend_attention),
    ("extend_attention_out", _extend_attention_out, _fake_extend_attention_out),
    ("merge", _merge, _fake_merge),
):
    for _key in ("CPU", "CUDA"):
        _library.impl(_name, _run, _key)
    torch.library.register_fake(f"extattn::{_name}", _fake, lib=_library)


def traced(
    q: Any,
    k: Any,
    v: Any,
    k_cache: Any,
    v_cache: Any,
    qo_indptr: Any,
    kv_indptr: Any,
    kv_indices: Any,
    out: Any,
    lse: Any,
    return_lse: bool,
    *options: Any,
) -> Any:
    """extattn.extend_attention where torch.compile traces it."""
    *options_of_the_operator, stream, validate = options
    if stream is not None or validate:
        raise extattn.InvalidError("stream, validate: found them set, allowed neither inside torch.compile")
    if v_cache is None:
        raise extattn.InvalidError("v_cache: found None, allowed inside torch.compile: a view of k_cache")
    inputs = (q, k, v, k_cache, v_cache, qo_indptr, kv_indptr, kv_indices)
    if out is None and lse is None:
        result, log_sum = torch.ops.extattn.extend_attention(*inputs, return_lse, *options_of_the_operator)
    else:
        result = q.new_empty((q.shape[0], q.shape[1], v_cache.shape[-1])) if out is None else out
        log_sum = lse
        if log_sum is None and return_lse:
            log_sum = q.new_empty((q.shape[0], q.shape[1]), dtype=torch.float32)
        torch.ops.extattn.extend_attention_out(*inputs, result, log_sum, *options_of_the_operator)
    return (result, log_sum) if return_lse else result


setattr(extattn, "_is_compiling", torch.compiler.is_compiling)  # noqa: B010, mypy sees a cycle

__all__ = ["traced"]
