"""extend_attention and merge as torch operators, for torch.compile and exported graphs.

    torch.ops.extattn.extend_attention(...)      returns (out, lse); lse is empty unless asked for
    torch.ops.extattn.extend_attention_out(...)  writes into out and lse
    torch.ops.extattn.merge(...)                 returns (out, lse)
    torch.ops.extattn.merge_out(...)             writes into out and lse

Registered when this module is imported, which `import extattn` does when torch is already there.
extattn.extend_attention and extattn.merge use them by themselves where they are traced.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Callable, Optional

import torch
from torch import Tensor

import extattn
from extattn import _attention, _options
from extattn._arrays import refuse_gradient

_OPTIONS = (
    "bool causal=True, float? softmax_scale=None, float logit_cap=0.0, int window_left=-1, "
    "Tensor? sinks=None, Tensor? custom_mask=None, Tensor? mask_indptr=None, Tensor? window_kv_offsets=None, "
    "bool skip_prefix_custom_mask=True, float? k_scale=1.0, float? v_scale=1.0, int xai_temperature_len=0, "
    "bool skip_prefix=False, bool skip_extend=False, str? family=None, int stages=0"
)
_INPUTS = (
    "Tensor q, Tensor? k, Tensor? v, Tensor? k_cache, Tensor? v_cache, Tensor qo_indptr, Tensor kv_indptr, "
    "Tensor kv_indices"
)

_library = torch.library.Library("extattn", "DEF")
_library.define(f"extend_attention({_INPUTS}, bool return_lse=False, {_OPTIONS}) -> (Tensor, Tensor)")
_library.define(f"extend_attention_out({_INPUTS}, Tensor(a!) out, Tensor(b!)? lse=None, {_OPTIONS}) -> ()")
_PARTS = "Tensor out_a, Tensor lse_a, Tensor out_b, Tensor lse_b"
_library.define(f"merge({_PARTS}) -> (Tensor, Tensor)")
_library.define(f"merge_out({_PARTS}, Tensor(a!) out, Tensor(b!) lse) -> ()")


def _empty_lse(q: Tensor) -> Tensor:
    return q.new_empty((0,), dtype=torch.float32)


def _extend_attention(
    q: Tensor,
    k: Optional[Tensor],
    v: Optional[Tensor],
    k_cache: Optional[Tensor],
    v_cache: Optional[Tensor],
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
    k_cache: Optional[Tensor],
    v_cache: Optional[Tensor],
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


def _merge_out(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor, out: Tensor, lse: Tensor) -> None:
    _attention.merge_run(out_a, lse_a, out_b, lse_b, out, lse)


def _result_like(q: Tensor, v: Optional[Tensor], v_cache: Optional[Tensor]) -> Tensor:
    """The call itself looks at everything; this is what a shape needs."""
    values, name = (v, "v") if v_cache is None else (v_cache, "v_cache")
    if q.dim() != 3:
        raise extattn.InvalidError(f"q: found shape {list(q.shape)}, allowed [tokens, heads, head_dim]")
    if values is None or values.dim() not in (3, 4):
        found = "None" if values is None else f"shape {list(values.shape)}"
        raise extattn.InvalidError(f"{name}: found {found}, allowed a tensor whose last dimension is head_dim_v")
    return q.new_empty((q.shape[0], q.shape[1], values.shape[-1]))


def _fake_extend_attention(
    q: Tensor,
    k: Optional[Tensor],
    v: Optional[Tensor],
    k_cache: Optional[Tensor],
    v_cache: Optional[Tensor],
    qo_indptr: Tensor,
    kv_indptr: Tensor,
    kv_indices: Tensor,
    return_lse: bool = False,
    *options: Any,
    **named: Any,
) -> tuple[Tensor, Tensor]:
    out = _result_like(q, v, v_cache)
    lse = q.new_empty((q.shape[0], q.shape[1]), dtype=torch.float32) if return_lse else _empty_lse(q)
    return out, lse


def _fake_nothing(*arguments: Any, **named: Any) -> None:
    return None


def _fake_merge(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    return out_a.new_empty(out_a.shape), lse_a.new_empty(lse_a.shape)


def _refuse_gradients(names: Iterable[str], tensors: Iterable[Any]) -> None:
    if torch.is_grad_enabled():
        for name, x in zip(names, tensors):
            if isinstance(x, Tensor) and x.requires_grad:
                refuse_gradient(name)


def _without_autograd(operator: Any) -> Callable[..., Any]:
    """The operator's part where torch would record it for a backward pass."""
    names = [argument.name for argument in operator._schema.arguments]

    def call(*arguments: Any, **named: Any) -> Any:
        _refuse_gradients(names, arguments)
        _refuse_gradients(named.keys(), named.values())
        with torch._C._AutoDispatchBelowAutograd():
            return operator(*arguments, **named)

    return call


for _name, _run, _fake in (
    ("extend_attention", _extend_attention, _fake_extend_attention),
    ("extend_attention_out", _extend_attention_out, _fake_nothing),
    ("merge", _merge, _fake_merge),
    ("merge_out", _merge_out, _fake_nothing),
):
    for _key in ("CPU", "CUDA"):
        _library.impl(_name, _run, _key)
    _library.impl(_name, _without_autograd(getattr(torch.ops.extattn, _name).default), "Autograd")
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
    _refuse_stream(stream)
    if validate is not False:
        raise extattn.InvalidError("validate: found it set, allowed False inside torch.compile")
    return_lse = _options.boolean("return_lse", return_lse)
    causal, softmax_scale, logit_cap, window_left, sinks, mask, mask_indptr, offsets, *others = options_of_the_operator
    numbers = causal, softmax_scale, logit_cap, window_left, *others
    causal, softmax_scale, logit_cap, window_left, *others = _attention.checked_options(*numbers)
    v, v_cache = _values(k, v, k_cache, v_cache)
    names = ("q", "k", "v", "k_cache", "v_cache", "sinks", "out", "lse")
    _refuse_gradients(names, (q, k, v, k_cache, v_cache, sinks, out, lse))
    inputs = (q, k, v, k_cache, v_cache, qo_indptr, kv_indptr, kv_indices)
    options = (causal, softmax_scale, logit_cap, window_left, sinks, mask, mask_indptr, offsets, *others)
    if out is None and lse is None:
        result, log_sum = torch.ops.extattn.extend_attention(*inputs, return_lse, *options)
    else:
        result = _result_like(q, v, v_cache) if out is None else out
        log_sum = lse
        if log_sum is None and return_lse:
            log_sum = q.new_empty((q.shape[0], q.shape[1]), dtype=torch.float32)
        torch.ops.extattn.extend_attention_out(*inputs, result, log_sum, *options)
    return (result, log_sum) if return_lse else result


def traced_merge(out_a: Any, lse_a: Any, out_b: Any, lse_b: Any, out: Any, lse: Any, stream: Any) -> Any:
    """extattn.merge where torch.compile traces it."""
    _refuse_stream(stream)
    names = ("out_a", "lse_a", "out_b", "lse_b", "out", "lse")
    _refuse_gradients(names, (out_a, lse_a, out_b, lse_b, out, lse))
    if out is None and lse is None:
        return torch.ops.extattn.merge(out_a, lse_a, out_b, lse_b)
    result = torch.empty_like(out_a, memory_format=torch.contiguous_format) if out is None else out
    log_sum = torch.empty_like(lse_a, memory_format=torch.contiguous_format) if lse is None else lse
    torch.ops.extattn.merge_out(out_a, lse_a, out_b, lse_b, result, log_sum)
    return result, log_sum


def _refuse_stream(stream: Any) -> None:
    if stream is not None:
        raise extattn.InvalidError("stream: found one, allowed None inside torch.compile")


def _values(k: Any, v: Any, k_cache: Any, v_cache: Any) -> tuple[Any, Any]:
    """v and v_cache where the latter is None: views of k and k_cache, as there are no addresses to compare yet."""
    if k_cache is None or v_cache is not None:
        return v, v_cache
    if isinstance(v, Tensor):
        width = v.shape[-1]
    elif v is None:
        raise extattn.InvalidError("v: found None without a v_cache, allowed a tensor, or the width of its view of k")
    else:
        width = _options.integer("v", v, 1, k_cache.shape[-1])
        v = None if k is None else k[..., :width]
    return v, k_cache[..., :width]


setattr(extattn, "_is_compiling", torch.compiler.is_compiling)  # noqa: B010, mypy sees a cycle

__all__ = ["traced", "traced_merge"]
