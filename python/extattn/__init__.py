"""extattn: extend attention, the attention of prefill with a paged KV cache.

    out = extattn.extend_attention(q, k, v, k_cache, v_cache, qo_indptr, kv_indptr, kv_indices)

Arrays may be torch tensors, numpy, CuPy or JAX arrays, or anything else with DLPack, all of one
device; where they lie decides where the call runs. On a GPU it is enqueued on the framework's
current stream and returns without waiting. docs/python.md is the manual; the shapes, and what
every option computes, are in include/extattn.h.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any, Optional, Union

from extattn import _attention
from extattn._attention import PlanInfo, plan
from extattn._library import (
    DeviceError,
    DoesNotFitError,
    Error,
    InternalError,
    InvalidError,
    NoDeviceError,
    OutOfMemoryError,
    UnsupportedError,
    lib,
)
from extattn._library import version as _version

__version__ = _version()


def _never() -> bool:
    return False


# Whether torch.compile is tracing; extattn.torch puts the real question here.
_is_compiling = _never


def extend_attention(
    q: Any,
    k: Any,
    v: Any,
    k_cache: Any,
    v_cache: Any,
    qo_indptr: Any,
    kv_indptr: Any,
    kv_indices: Any,
    *,
    out: Any = None,
    lse: Any = None,
    return_lse: bool = False,
    causal: bool = True,
    softmax_scale: Optional[float] = None,
    logit_cap: float = 0.0,
    window_left: int = -1,
    sinks: Any = None,
    custom_mask: Any = None,
    mask_indptr: Any = None,
    window_kv_offsets: Any = None,
    skip_prefix_custom_mask: bool = True,
    k_scale: Optional[float] = 1.0,
    v_scale: Optional[float] = 1.0,
    xai_temperature_len: int = 0,
    skip_prefix: bool = False,
    skip_extend: bool = False,
    family: Optional[str] = None,
    stages: int = 0,
    stream: Optional[int] = None,
    validate: bool = False,
) -> Any:
    """Attention of new tokens to a cached prefix and to themselves. Returns out, or (out, lse).

    q                  [T, Hq, D] bf16, f16 or f32: the new tokens of all sequences, one after another
    k, v               [T, Hkv, D] and [T, Hkv, Dv], of q's type; may be None with skip_extend
    k_cache, v_cache   [slots, Hkv, D or Dv], or [pages, page_size, Hkv, D or Dv]: the pool, of q's type
                       or e4m3, e5m2. v_cache None: v and v_cache are the first Dv columns of k and
                       k_cache (latent attention), and v is that view of k, or Dv. k_cache and v_cache
                       None: no sequence has a prefix
    qo_indptr          [B+1] int32: sequence b's new tokens are rows qo_indptr[b] .. qo_indptr[b+1]-1
    kv_indptr          [B+1] int32: the same for the prefix, into kv_indices
    kv_indices         int32 or int64: the slot of each prefix token
    out, lse           where to write, [T, Hq, Dv] and f32 [T, Hq]; made when None (lse: with return_lse)
    return_lse         also return the natural log of the softmax denominator
    causal             a new token sees no later one
    softmax_scale      None: 1/sqrt(D)
    logit_cap          s = cap * tanh(s / cap); 0: none
    window_left        a query sees this many keys before itself; -1: all
    sinks              [Hq], f32 or q's type: one logit a head that adds to the denominator only
    custom_mask        flat bool or uint8, replaces the causal rule; with mask_indptr [B] and perhaps
                       window_kv_offsets [B] int32, as include/extattn.h says
    skip_prefix_custom_mask  the prefix is visible whatever the mask says
    k_scale, v_scale   of the prefix, as numbers (a tensor is refused); None: 1
    xai_temperature_len  length from which scores grow with log2 of the position; 0: none
    skip_prefix, skip_extend  leave one part out: two such results, merged, are the whole
    family, stages     the kernel family and the pipeline depth; None and 0: automatic
    stream             a cudaStream_t as an int, on a GPU only; None: the framework's current stream
    validate           check index arrays and slots on a GPU too, which waits for the answer

    Strided views are welcome as long as the last dimension is contiguous. Raises extattn.Error (the
    subclass says which kind) with one line: the argument, what was found, what is allowed. Not
    differentiable. Inside torch.compile this is the operator torch.ops.extattn.extend_attention
    (import extattn.torch, or torch before extattn).
    """
    if _is_compiling():
        from extattn.torch import traced

        return traced(
            q, k, v, k_cache, v_cache, qo_indptr, kv_indptr, kv_indices, out, lse, return_lse, causal, softmax_scale,
            logit_cap, window_left, sinks, custom_mask, mask_indptr, window_kv_offsets, skip_prefix_custom_mask,
            k_scale, v_scale, xai_temperature_len, skip_prefix, skip_extend, family, stages, stream, validate,
        )  # fmt: skip
    made = out is None
    result, log_sum = _attention.run(
        q, k, v, k_cache, v_cache, qo_indptr, kv_indptr, kv_indices, out, lse, return_lse, causal, softmax_scale,
        logit_cap, window_left, sinks, custom_mask, mask_indptr, window_kv_offsets, skip_prefix_custom_mask,
        k_scale, v_scale, xai_temperature_len, skip_prefix, skip_extend, family, stages, stream, validate,
    )  # fmt: skip
    if made and type(result) is not type(q):
        result = _attention.finish(q, result, stream)
        log_sum = _attention.finish(q, log_sum, stream)
    elif made and type(q).__module__.startswith("jax"):
        result = _attention.finish(q, result, stream)
    if return_lse:
        return result, log_sum
    return result


def merge(
    out_a: Any,
    lse_a: Any,
    out_b: Any,
    lse_b: Any,
    *,
    out: Any = None,
    lse: Any = None,
    stream: Optional[int] = None,
) -> tuple[Any, Any]:
    """Two results for the same queries over disjoint sets of keys, as one: (out, lse).

    out_a, out_b  [T, H, Dv] bf16, f16 or f32; lse_a, lse_b f32 [T, H], packed. A part with lse = -inf
    counts for nothing. out may be out_a or out_b, lse likewise; made when None.
    """
    if _is_compiling():
        from extattn.torch import traced_merge

        merged: tuple[Any, Any] = traced_merge(out_a, lse_a, out_b, lse_b, out, lse, stream)
        return merged
    made = out is None
    result, log_sum = _attention.merge_run(out_a, lse_a, out_b, lse_b, out, lse, stream)
    if made:
        result = _attention.finish(out_a, result, stream)
        log_sum = _attention.finish(out_a, log_sum, stream)
    return result, log_sum


def capture(
    directory: Union[str, os.PathLike[str]],
    *,
    call: int = 0,
    slower_ms: float = 0.0,
    failing: Optional[bool] = None,
    max_files: int = 16,
) -> contextlib.AbstractContextManager[None]:
    """A context manager inside which calls are written into directory as case files.

        with extattn.capture("cases", call=3):
            ...

    call: the n-th call of each device, counted from here; slower_ms: calls that take longer; failing:
    calls that are refused or fail (the default when neither of the others is given). At most
    max_files a device. `extattn run FILE` replays a case on any machine.

    A case file holds the call's tensors: what users typed can be read back from them. Writing one
    copies from the GPU and waits; slower_ms waits for every call. Calls inside a CUDA graph capture
    are not written. A call that Python refuses before it reaches the library is not either.
    """
    return _attention.capturing(_attention.capture_options(directory, call, slower_ms, failing, max_files))


def cuda_device_count() -> int:
    """How many GPUs the driver shows; 0 where there is no driver."""
    return int(lib.ea_cuda_device_count())


if "torch" in sys.modules:
    with contextlib.suppress(ImportError):  # a torch too old for the operator
        import extattn.torch  # noqa: F401

__all__ = [
    "DeviceError",
    "DoesNotFitError",
    "Error",
    "InternalError",
    "InvalidError",
    "NoDeviceError",
    "OutOfMemoryError",
    "PlanInfo",
    "UnsupportedError",
    "__version__",
    "capture",
    "cuda_device_count",
    "extend_attention",
    "merge",
    "plan",
]
