"""Calls: arrays checked and packed into the library's structs, plans and contexts kept.

The way of a call is short on purpose (at most 15 microseconds on the host, tests/python/overhead.py
measures it): a context is made once a device, a plan once a kind of call, and a batch is packed
into a buffer that belongs to the thread. torch tensors take a way that is shorter still, in C (_look.py),
once a call of their kind has come by the long one, as long as nothing is wrong with them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn, Optional

from extattn import _library as ea
from extattn import _options
from extattn._arrays import Framework, Type, View, framework_of, synchronize
from extattn._library import DTYPE_NAMES, InvalidError, lib
from extattn._look import Functions
from extattn._options import MAX_I32, MAX_I64

_ea_run = lib.ea_run
_ea_workspace_size = lib.ea_workspace_size
_pack_batch = ea.BATCH.pack_into
_ALIGNMENT = 256  # of a workspace
_VALIDATE_BYTES = 256  # of workspace on a GPU, for ea_validate to allocate nothing

# ---- contexts and plans --------------------------------------------------------------------------


class _Context:
    """One device; lives until the process ends."""

    def __init__(self, device: int) -> None:
        options = ea.ContextOptions(
            ctypes.sizeof(ea.ContextOptions), ea.DEVICE_CPU if device < 0 else ea.DEVICE_CUDA, max(device, 0), 0, 0
        )
        handle = ctypes.c_void_p()
        ea.check(lib.ea_context_create(ctypes.byref(options), ctypes.byref(handle)))
        self.handle = handle.value
        if _captures:
            self.capture(_captures[-1])

    def capture(self, options: Optional[ea.CaptureOptions]) -> None:
        ea.check(lib.ea_context_capture(self.handle, ctypes.byref(options) if options else None))


_lock = threading.RLock()
_contexts: dict[int, _Context] = {}
_captures: list[ea.CaptureOptions] = []


def _context(device: int) -> _Context:
    found = _contexts.get(device)
    if found is None:
        with _lock:
            found = _contexts.get(device)
            if found is None:
                found = _contexts[device] = _Context(device)
    return found


@dataclass(frozen=True)
class PlanInfo:
    """What would run, and why; the fields are those of the C library's ea_plan_info."""

    family: str
    kernel: str
    tile_m: int
    tile_n: int
    stages: int
    max_stages: int
    threads: int
    smem_bytes: int
    smem_limit_bytes: int
    registers: int
    reason: str


_FAMILY_NAMES = {number: name for name, number in ea.FAMILIES.items()}


def _info_of(info: ea.PlanInfo) -> PlanInfo:
    return PlanInfo(
        _FAMILY_NAMES.get(info.family, "unknown"),
        info.kernel.decode(),
        info.tile_m,
        info.tile_n,
        info.stages,
        info.max_stages,
        info.threads,
        info.smem_bytes,
        info.smem_limit_bytes,
        info.registers,
        info.reason.decode("utf-8", "replace"),
    )


def _family(name: Optional[str]) -> int:
    number = ea.FAMILIES.get("auto" if name is None else name)
    if number is None:
        raise InvalidError(f"family: found {name!r}, allowed {', '.join(ea.FAMILIES)}")
    return number


def _plan_options(family: Optional[str], stages: int) -> ea.PlanOptions:
    stages = _options.integer("stages", stages, 0, MAX_I32)
    return ea.PlanOptions(ctypes.sizeof(ea.PlanOptions), _family(family), stages)


class _Plan:
    def __init__(self, device: int, problem: ea.Problem, family: Optional[str], stages: int) -> None:
        options = _plan_options(family, stages)
        handle = ctypes.c_void_p()
        context = _context(device)
        ea.check(lib.ea_plan_create(context.handle, ctypes.byref(problem), ctypes.byref(options), ctypes.byref(handle)))
        self.handle = handle.value
        self.device = device
        self.q_heads, self.head_dim_v = problem.num_q_heads, problem.head_dim_v
        self.workspace_bytes: dict[tuple[int, int, int], int] = {}  # by num_seqs, num_tokens and num_kv_indices

    def info(self) -> PlanInfo:
        info = ea.PlanInfo(struct_size=ctypes.sizeof(ea.PlanInfo))
        ea.check(lib.ea_plan_get_info(self.handle, ctypes.byref(info)))
        return _info_of(info)

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            lib.ea_plan_destroy(self.handle)


_plans: dict[Any, _Plan] = {}
_MAX_PLANS = 4096  # a caller whose scales change at every call must not grow without end


def _keep_plan(key: Any, plan: _Plan) -> None:
    with _lock:
        if len(_plans) >= _MAX_PLANS:
            _plans.clear()
        _plans[key] = plan


def checked_options(
    causal: Any,
    softmax_scale: Any,
    logit_cap: Any,
    window_left: Any,
    skip_prefix_custom_mask: Any,
    k_scale: Any,
    v_scale: Any,
    xai_temperature_len: Any,
    skip_prefix: Any,
    skip_extend: Any,
    family: Any,
    stages: Any,
) -> tuple[bool, Optional[float], float, int, bool, float, float, int, bool, bool, Optional[str], int]:
    """Each as its own type, or refused: plans are found by them, and to Python's dictionaries 1 is True."""
    boolean, integer, number, scale = _options.boolean, _options.integer, _options.number, _options.scale
    return (
        boolean("causal", causal),
        None if softmax_scale is None else number("softmax_scale", softmax_scale),
        number("logit_cap", logit_cap),
        integer("window_left", window_left, -1, MAX_I32),
        boolean("skip_prefix_custom_mask", skip_prefix_custom_mask),
        scale("k_scale", k_scale),
        scale("v_scale", v_scale),
        integer("xai_temperature_len", xai_temperature_len, -1, MAX_I64),
        boolean("skip_prefix", skip_prefix),
        boolean("skip_extend", skip_extend),
        _options.text("family", family),
        integer("stages", stages, 0, MAX_I32),
    )


# ---- what belongs to a thread ----------------------------------------------------------------------


class _Scratch(threading.local):
    def __init__(self) -> None:
        self.batch = (ctypes.c_char * ea.BATCH.size)()
        self.batch_address = ctypes.addressof(self.batch)
        self.merge = (ctypes.c_char * ea.MERGE.size)()
        self.merge_address = ctypes.addressof(self.merge)
        self.size = ctypes.c_size_t()
        self.size_address = ctypes.addressof(self.size)
        self.workspace: Any = None
        self.workspace_address = 0
        self.workspace_bytes = 0

    def host_workspace(self, num_bytes: int) -> int:
        if num_bytes > self.workspace_bytes:
            self.workspace = (ctypes.c_char * (num_bytes + _ALIGNMENT))()
            address = ctypes.addressof(self.workspace)
            self.workspace_address = (address + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT
            self.workspace_bytes = num_bytes
        return self.workspace_address


_scratch = _Scratch()

# ---- refusals, out of the way of the calls that are fine -------------------------------------------


def _shape_text(shape: Any) -> str:
    return "[" + ", ".join(str(int(extent)) for extent in shape) + "]"


def _type_name(dtype: Type) -> str:
    return dtype if isinstance(dtype, str) else DTYPE_NAMES[dtype]


def _refuse_shape(name: str, view: View, wanted: str) -> NoReturn:
    raise InvalidError(f"{name}: found shape {_shape_text(view[1])}, allowed {wanted}")


def _device_name(device: int) -> str:
    return "cpu" if device < 0 else f"cuda:{device}"


def _refuse_device(name: str, view: View, device: int) -> NoReturn:
    raise InvalidError(f"{name}: found on {_device_name(view[4])}, allowed {_device_name(device)}, as q")


def _refuse_type(name: str, view: View, allowed: str) -> NoReturn:
    raise InvalidError(f"{name}: found type {_type_name(view[3])}, allowed {allowed}")


def _refuse_stride(name: str, view: View) -> None:
    if 0 in view[1]:
        return  # nothing to stride over
    raise InvalidError(
        f"{name}: found strides {_shape_text(view[2])}, allowed a last dimension that is contiguous"
        " and others that are not negative"
    )


def _flat(name: str, framework: Framework, x: Any, device: int, types: tuple[int, ...], least: int) -> View:
    """An array of one dimension, contiguous, of at least so many elements."""
    view = framework.view(name, x)
    _, shape, strides, code, on, _ = view
    if on != device:
        _refuse_device(name, view, device)
    if code not in types:
        _refuse_type(name, view, ", ".join(DTYPE_NAMES[t] for t in types))
    if len(shape) != 1 or shape[0] < least:
        _refuse_shape(name, view, f"[{least}]" if least else "one dimension")
    if strides[0] != 1 and shape[0] > 1:
        _refuse_stride(name, view)
    return view


def _refuse_stream(stream: int) -> NoReturn:
    raise InvalidError(f"stream: found {stream} for a call on the CPU, allowed None")


_FLOAT_TYPES = (ea.BF16, ea.F16, ea.F32)
_FLOAT_NAMES = ", ".join(DTYPE_NAMES[t] for t in _FLOAT_TYPES)
_8_BIT_TYPES = (ea.E4M3, ea.E5M2)
_I32 = ea.I32
_INDEX_TYPES = (ea.I32, ea.I64)
_INDPTR_TYPES = (ea.I32,)
_MASK_TYPES = (ea.BOOL, ea.U8)


def _check_rows(name: str, view: View, device: int, tokens: int, dtype: Type) -> None:
    """A tensor [T, H, D] of q's type on q's device."""
    _, shape, strides, code, on, _ = view
    if on != device:
        _refuse_device(name, view, device)
    if code != dtype:
        _refuse_type(name, view, f"{_type_name(dtype)}, as q")
    if len(shape) != 3 or shape[0] != tokens:
        _refuse_shape(name, view, f"[{tokens}, heads, head_dim]")
    if strides[2] != 1 and shape[2] > 1:
        _refuse_stride(name, view)


def _stride(name: str, view: View, index: int) -> int:
    """A stride as the library takes it. 0 means packed there, so a dimension of one gets any other."""
    _, shape, strides, _, _, _ = view
    stride = strides[index]
    if stride > 0:
        return int(stride)
    if shape[index] <= 1 or 0 in shape:
        return 1 << 20  # never used
    if stride < 0:
        _refuse_stride(name, view)
    raise InvalidError(
        f"{name}: found strides {_shape_text(strides)} (0: an array that was broadcast), allowed rows of their own,"
        " as a copy has"
    )


# ---- pools and values, there or not -----------------------------------------------------------------


def _check_k_cache(view: View, q_view: View) -> None:
    _, shape, strides, dtype, device, _ = view
    _, q_shape, _, q_dtype, q_device, _ = q_view
    if len(shape) not in (3, 4):
        _refuse_shape("k_cache", view, "[slots, heads, head_dim] or [pages, page_size, heads, head_dim]")
    if device != q_device:
        _refuse_device("k_cache", view, q_device)
    if dtype != q_dtype and dtype not in _8_BIT_TYPES:
        _refuse_type("k_cache", view, f"{_type_name(q_dtype)}, as q, or e4m3, e5m2")
    if shape[-1] != q_shape[2]:
        _refuse_shape("k_cache", view, f"a last dimension of {q_shape[2]}, as q")
    if strides[-1] != 1 and shape[-1] > 1:
        _refuse_stride("k_cache", view)


def _check_v_cache(view: View, k_cache_view: View) -> None:
    _, shape, strides, dtype, device, _ = view
    _, k_shape, _, k_dtype, k_device, _ = k_cache_view
    if device != k_device:
        _refuse_device("v_cache", view, k_device)
    if dtype != k_dtype:
        _refuse_type("v_cache", view, f"{_type_name(k_dtype)}, as k_cache")
    if len(shape) != len(k_shape) or tuple(shape[:-1]) != tuple(k_shape[:-1]):
        _refuse_shape("v_cache", view, f"{_shape_text(k_shape[:-1])} and a head_dim_v, as k_cache")
    if strides[-1] != 1 and shape[-1] > 1:
        _refuse_stride("v_cache", view)


def _no_cache(rows: View) -> View:
    """A pool without slots for rows [T, H, D]: as when no sequence has a prefix, which the library checks."""
    _, (_, heads, dim), _, dtype, device, _ = rows
    return 0, (0, heads, dim), (heads * dim, dim, 1), dtype, device, None


def _no_k_cache(framework: Framework, k: Any, v_cache: Any, q_view: View) -> View:
    if v_cache is not None:
        raise InvalidError("v_cache: found an array where k_cache is None, allowed None")
    if k is None:
        raise InvalidError("k: found None where k_cache is None, allowed an array")
    k_view = framework.view("k", k)
    _check_rows("k", k_view, q_view[4], q_view[1][0], q_view[3])
    return _no_cache(k_view)


def _shared_width(framework: Framework, v: Any, k_view: Optional[View], head_dim: int) -> tuple[int, Any]:
    """Dv where v_cache is None: v is that number or, k's first columns, has it; and what keeps v's memory."""
    if not _options.is_array(v):
        if not hasattr(v, "__index__"):
            raise InvalidError(
                f"v: found {_options.described(v)} without a v_cache, allowed an array, or the width of its view of k"
            )
        return _options.integer("v", v, 1, head_dim), None
    view = framework.view("v", v)
    if k_view is None:
        raise InvalidError("v: found an array where k and v_cache are None, allowed an integer: the width of its view")
    address, shape, _, dtype, device, keep = view
    k_address, k_shape, _, k_dtype, k_device, _ = k_view
    tokens, heads, _ = k_shape
    if len(shape) != 3 or tuple(shape[:2]) != (tokens, heads) or not 1 <= shape[2] <= head_dim:
        _refuse_shape("v", view, f"[{tokens}, {heads}, 1 to {head_dim}], a view of k as there is no v_cache")
    same_place = address == k_address and all(
        view[2][i] == k_view[2][i] for i, extent in enumerate(shape) if extent > 1
    )
    if (dtype, device) != (k_dtype, k_device) or (tokens and not same_place):
        raise InvalidError(
            "v: found memory of its own without a v_cache, allowed k's first columns (k[..., :width]), their width as"
            " an integer, or a v_cache"
        )
    return shape[2], keep


# ---- the call ----------------------------------------------------------------------------------------


def _run_looked_at(
    functions: Functions,
    plan: _Plan,
    framework: Framework,
    q: Any,
    out: Any,
    lse: Any,
    want_lse: bool,
    stream: Optional[int],
) -> Optional[tuple[Any, Any]]:
    """Runs what functions' look() found in order. None: the results are to be looked at the long way."""
    _, workspace_bytes, run_it = functions
    num_bytes = workspace_bytes(plan.handle)
    if num_bytes is None:
        return None
    if out is None:
        out = framework.empty_like(q, (q.shape[0], plan.q_heads, plan.head_dim_v))
    if lse is None and want_lse:
        lse = framework.empty_like(q, (q.shape[0], plan.q_heads), f32=True)
    keep = None
    workspace = used = 0
    if plan.device >= 0:
        used = framework.stream(plan.device) if stream is None else stream
        if num_bytes:
            workspace, keep = framework.workspace(q, plan.device, num_bytes, used)
    elif stream is not None:
        return None
    elif num_bytes:
        workspace = _scratch.host_workspace(num_bytes)
    status = run_it(plan.handle, out, lse, workspace, num_bytes, used)
    if status > 0:
        ea.raise_status(status)
    del keep  # has lived until here
    return None if status else (out, lse)


def run(
    q: Any,
    k: Any,
    v: Any,
    k_cache: Any,
    v_cache: Any,
    qo_indptr: Any,
    kv_indptr: Any,
    kv_indices: Any,
    out: Any = None,
    lse: Any = None,
    want_lse: bool = False,
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
) -> tuple[Any, Any]:
    """See extattn.extend_attention. Returns (out, lse), lse None where it is not wanted."""
    if stream is not None:
        stream = _options.integer("stream", stream, 0, 2**64 - 1)
    if want_lse is not True and want_lse is not False:
        want_lse = _options.boolean("return_lse", want_lse)
    if validate is not False:
        validate = _options.boolean("validate", validate)
    framework = framework_of(q)
    look = framework.look
    functions = None if look is None or custom_mask is not None or validate else look.functions
    short_key: Any = None
    if look is not None and functions is not None:
        look.functions = None  # a call within this one (a hook of the allocator's) takes the long way
        try:
            inputs = functions[0](
                q, k, v, k_cache, v_cache, qo_indptr, kv_indptr, kv_indices, sinks, causal, softmax_scale, logit_cap,
                window_left, skip_prefix_custom_mask, k_scale, v_scale, xai_temperature_len, skip_prefix, skip_extend,
                family, stages,
            )  # fmt: skip
            if inputs is not None:
                short_key = inputs, family
                known = _plans.get(short_key)
                if known is not None:
                    short_key = None
                    results = _run_looked_at(functions, known, framework, q, out, lse, want_lse, stream)
                    if results is not None:
                        return results
        finally:
            look.functions = functions

    # The long way, in Python: every framework's, and where what is wrong gets its words.
    (causal, softmax_scale, logit_cap, window_left, skip_prefix_custom_mask, k_scale, v_scale, xai_temperature_len,
     skip_prefix, skip_extend, family, stages) = checked_options(
        causal, softmax_scale, logit_cap, window_left, skip_prefix_custom_mask, k_scale, v_scale, xai_temperature_len,
        skip_prefix, skip_extend, family, stages)  # fmt: skip
    view_of = framework.view
    q_address, q_shape, q_strides, dtype, device, q_keep = q_view = view_of("q", q)
    if dtype not in _FLOAT_TYPES:
        _refuse_type("q", q_view, _FLOAT_NAMES)
    if len(q_shape) != 3:
        _refuse_shape("q", q_view, "[tokens, heads, head_dim]")
    if q_strides[2] != 1 and q_shape[2] > 1:
        _refuse_stride("q", q_view)
    if device < 0 and stream is not None:
        _refuse_stream(stream)
    tokens, q_heads, head_dim = q_shape

    if k_cache is None:
        k_cache_view = _no_k_cache(framework, k, v_cache, q_view)
    else:
        k_cache_view = view_of("k_cache", k_cache)
        _check_k_cache(k_cache_view, q_view)
    kc_address, kc_shape, kc_strides, cache_dtype, _, _ = k_cache_view
    paged = len(kc_shape) == 4
    kv_heads = kc_shape[-2]

    if skip_extend and k is None:
        k_view = q_view  # not read
        k_address, k_strides, k_keep = q_address, q_strides, None
    else:
        k_view = k_address, k_shape, k_strides, k_dtype, k_device, k_keep = view_of("k", k)
        if k_dtype != dtype or k_device != device or len(k_shape) != 3 or k_shape[0] != tokens or k_strides[2] != 1:
            _check_rows("k", k_view, device, tokens, dtype)
        if k_shape[1] != kv_heads or k_shape[2] != head_dim:
            _refuse_shape("k", k_view, f"[{tokens}, {kv_heads}, {head_dim}], as k_cache")

    # Latent attention: v and v_cache may be left out, or be views of k and k_cache.
    v_keep = None
    shared = v_cache is None and (k_cache is not None or not _options.is_array(v))
    if shared:
        head_dim_v, v_keep = _shared_width(framework, v, None if k is None else k_view, head_dim)
        v_view, v_cache_view = k_view, k_cache_view
        v_address, v_strides = k_address, k_strides
        vc_address, vc_strides, vc_keep = kc_address, kc_strides, None
    else:
        v_view = q_view  # not read
        if not (skip_extend and v is None):
            v_view = view_of("v", v)
            _check_rows("v", v_view, device, tokens, dtype)
        v_address, v_shape, v_strides, _, _, v_keep = v_view
        v_cache_view = _no_cache(v_view) if k_cache is None else view_of("v_cache", v_cache)
        vc_address, vc_shape, vc_strides, _, _, vc_keep = v_cache_view
        _check_v_cache(v_cache_view, k_cache_view)
        head_dim_v = vc_shape[-1]
        if v is not None and (v_shape[1] != kv_heads or v_shape[2] != head_dim_v):
            _refuse_shape("v", v_view, f"[{tokens}, {kv_heads}, {head_dim_v}], as v_cache")
        shared = (
            vc_address == kc_address
            and v_address == k_address
            and head_dim_v <= head_dim
            and vc_strides == kc_strides
            and v_strides == k_strides
        )

    # The three index arrays of every call, looked at here as long as they are fine; _flat says what is not.
    qo_view = qo_address, qo_shape, qo_strides, qo_dtype, qo_device, _ = view_of("qo_indptr", qo_indptr)
    if qo_dtype != _I32 or qo_device != device or len(qo_shape) != 1 or qo_strides[0] != 1:
        qo_view = _flat("qo_indptr", framework, qo_indptr, device, _INDPTR_TYPES, 1)
    seqs = qo_shape[0] - 1
    kv_address, kv_shape, kv_strides, kv_dtype, kv_device, _ = view_of("kv_indptr", kv_indptr)
    if kv_dtype != _I32 or kv_device != device or len(kv_shape) != 1 or kv_shape[0] <= seqs or kv_strides[0] != 1:
        _flat("kv_indptr", framework, kv_indptr, device, _INDPTR_TYPES, seqs + 1)
    if seqs < 0:
        _refuse_shape("qo_indptr", qo_view, "[1] or more")
    at_address, at_shape, at_strides, index_dtype, at_device, at_keep = view_of("kv_indices", kv_indices)
    if index_dtype not in _INDEX_TYPES or at_device != device or len(at_shape) != 1 or at_strides[0] != 1:
        _flat("kv_indices", framework, kv_indices, device, _INDEX_TYPES, 0)

    mask_address = mask_bytes = mask_indptr_address = offsets_address = 0
    mask_indptr_dtype: Type = ea.I64
    if custom_mask is not None:
        mask_view = _flat("custom_mask", framework, custom_mask, device, _MASK_TYPES, 0)
        mask_address, mask_bytes = mask_view[0], mask_view[1][0]
        if mask_indptr is None:
            raise InvalidError(f"mask_indptr: found None, allowed [{seqs}], as there is a custom_mask")
        mask_indptr_view = _flat("mask_indptr", framework, mask_indptr, device, _INDEX_TYPES, seqs)
        mask_indptr_address, mask_indptr_dtype = mask_indptr_view[0], mask_indptr_view[3]
        if window_kv_offsets is not None:
            offsets_view = _flat("window_kv_offsets", framework, window_kv_offsets, device, _INDPTR_TYPES, seqs)
            offsets_address = offsets_view[0]
    sinks_address = 0
    sinks_dtype: Type = ea.F32
    if sinks is not None:
        sinks_view = _flat("sinks", framework, sinks, device, (ea.F32, dtype), q_heads)
        sinks_address, sinks_dtype = sinks_view[0], sinks_view[3]
        if sinks_view[1][0] != q_heads:
            _refuse_shape("sinks", sinks_view, f"[{q_heads}]")

    key = (
        device,
        dtype,
        cache_dtype,
        index_dtype,
        q_heads,
        kv_heads,
        head_dim,
        head_dim_v,
        kc_shape[1] if paged else 1,
        shared,
        causal,
        softmax_scale,
        logit_cap,
        window_left,
        sinks_dtype if sinks is not None else 0,
        mask_indptr_dtype if custom_mask is not None else 0,
        skip_prefix_custom_mask,
        k_scale,
        v_scale,
        xai_temperature_len,
        skip_prefix,
        skip_extend,
        family,
        stages,
    )
    plan = _plans.get(key)
    if plan is None:
        plan = _make_plan(key, sinks is not None, custom_mask is not None, sinks_dtype, mask_indptr_dtype)

    framework.refuse_gradients(
        (("q", q), ("k", k), ("v", v), ("k_cache", k_cache), ("v_cache", v_cache), ("sinks", sinks), ("out", out),
         ("lse", lse))
    )  # fmt: skip
    if out is None:
        out = framework.empty_like(q, (tokens, q_heads, head_dim_v))
        out_view = framework_of(out).view("out", out)
    else:
        out_view = framework_of(out).written("out", out)
    out_address, out_shape, out_strides, out_dtype, out_device, _ = out_view
    if out_device != device:
        _refuse_device("out", out_view, device)
    if out_dtype != dtype:
        _refuse_type("out", out_view, f"{_type_name(dtype)}, as q")
    if len(out_shape) != 3 or out_shape[0] != tokens or out_shape[1] != q_heads or out_shape[2] != head_dim_v:
        _refuse_shape("out", out_view, f"[{tokens}, {q_heads}, {head_dim_v}]")
    if out_strides[2] != 1 and head_dim_v > 1:
        _refuse_stride("out", out_view)
    lse_address = lse_token = lse_head = 0
    lse_view = None
    if lse is not None:
        lse_view = framework_of(lse).written("lse", lse)
    elif want_lse:
        lse = framework.empty_like(q, (tokens, q_heads), f32=True)
        lse_view = framework_of(lse).view("lse", lse)
    if lse_view is not None:
        lse_address, lse_shape, _, lse_dtype, lse_device, _ = lse_view
        if lse_device != device:
            _refuse_device("lse", lse_view, device)
        if lse_dtype != ea.F32:
            _refuse_type("lse", lse_view, "f32")
        if len(lse_shape) != 2 or lse_shape[0] != tokens or lse_shape[1] != q_heads:
            _refuse_shape("lse", lse_view, f"[{tokens}, {q_heads}]")
        lse_token, lse_head = _stride("lse", lse_view, 0), _stride("lse", lse_view, 1)

    # Strides of 0 mean packed to the library; a dimension of one element may carry any.
    page_stride = _stride("k_cache", k_cache_view, 0)
    v_page_stride = _stride("v_cache", v_cache_view, 0)
    heads_at = len(kc_shape) - 2
    scratch = _scratch
    address = scratch.batch_address
    _pack_batch(
        scratch.batch,
        0,
        ea.BATCH.size,
        seqs,
        tokens,
        at_shape[0],
        kc_shape[0],
        q_address,
        _stride("q", q_view, 0),
        _stride("q", q_view, 1),
        k_address,
        _stride("k", k_view, 0),
        _stride("k", k_view, 1),
        v_address,
        _stride("v", v_view, 0),
        _stride("v", v_view, 1),
        kc_address,
        page_stride,
        _stride("k_cache", k_cache_view, 1) if paged else page_stride,
        _stride("k_cache", k_cache_view, heads_at),
        vc_address,
        v_page_stride,
        _stride("v_cache", v_cache_view, 1) if paged else v_page_stride,
        _stride("v_cache", v_cache_view, heads_at),
        out_address,
        _stride("out", out_view, 0),
        _stride("out", out_view, 1),
        lse_address,
        lse_token,
        lse_head,
        qo_address,
        kv_address,
        at_address,
        mask_address,
        mask_bytes,
        mask_indptr_address,
        offsets_address,
        sinks_address,
        0,
        0,
    )
    handle = plan.handle
    size_key = seqs, tokens, at_shape[0]
    num_bytes = plan.workspace_bytes.get(size_key)
    if num_bytes is None:
        num_bytes = _ask_workspace(plan, address, size_key)
    keep = None
    if device < 0:
        workspace = scratch.host_workspace(num_bytes) if num_bytes else 0
        used = None
    else:
        used = framework.stream(device) if stream is None else stream
        if validate:
            num_bytes = max(num_bytes, _VALIDATE_BYTES)
        workspace, keep = framework.workspace(q, device, num_bytes, used) if num_bytes else (0, None)
    if validate:
        ea.check(lib.ea_validate(handle, address, workspace, num_bytes, used))
    status = _ea_run(handle, address, workspace, num_bytes, used)
    if status:
        ea.raise_status(status)
    if short_key is not None:
        _keep_plan(short_key, plan)  # the next time by the short way
    # The views' keeps (DLPack capsules among them) have lived until here.
    del keep, q_keep, k_keep, v_keep, vc_keep, at_keep, k_cache_view
    return out, lse


def _ask_workspace(plan: _Plan, address: int, size_key: tuple[int, int, int]) -> int:
    ea.check(_ea_workspace_size(plan.handle, address, _scratch.size_address))
    num_bytes = _scratch.size.value
    if len(plan.workspace_bytes) >= _MAX_PLANS:
        plan.workspace_bytes.clear()
    plan.workspace_bytes[size_key] = num_bytes
    return num_bytes


def _make_plan(key: Any, has_sinks: bool, has_mask: bool, sinks_dtype: Type, mask_indptr_dtype: Type) -> _Plan:
    (device, dtype, cache_dtype, index_dtype, q_heads, kv_heads, head_dim, head_dim_v, page_size, shared, causal,
     softmax_scale, logit_cap, window_left, _, _, skip_prefix_custom_mask, k_scale, v_scale,
     xai_temperature_len, skip_prefix, skip_extend, family, stages) = key  # fmt: skip
    problem = _problem(
        dtype=dtype,
        cache_dtype=cache_dtype,
        index_dtype=index_dtype,
        mask_indptr_dtype=mask_indptr_dtype,
        sinks_dtype=sinks_dtype,
        num_q_heads=q_heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        head_dim_v=head_dim_v,
        page_size=page_size,
        shared_kv=shared,
        causal=causal,
        has_sinks=has_sinks,
        has_custom_mask=has_mask,
        skip_prefix_custom_mask=skip_prefix_custom_mask,
        skip_prefix=skip_prefix,
        skip_extend=skip_extend,
        window_left=window_left,
        xai_temperature_len=xai_temperature_len,
        softmax_scale=softmax_scale,
        logit_cap=logit_cap,
        k_scale=k_scale,
        v_scale=v_scale,
    )
    plan = _Plan(device, problem, family, stages)
    _keep_plan(key, plan)
    return plan


def _problem(**fields: Any) -> ea.Problem:
    dtype, sinks_dtype = fields["dtype"], fields["sinks_dtype"]
    if fields["softmax_scale"] is not None and not fields["softmax_scale"] > 0:
        raise InvalidError(f"softmax_scale: found {fields['softmax_scale']}, allowed more than 0, or None: 1/sqrt(D)")
    for name in ("num_q_heads", "num_kv_heads", "head_dim", "page_size"):  # of plan(), or of arrays' shapes
        fields[name] = _options.integer(name, fields[name], 1, MAX_I32)
    fields["head_dim_v"] = _options.integer("head_dim_v", fields["head_dim_v"], 0, MAX_I32)
    for name, most in (("window_left", MAX_I32), ("xai_temperature_len", MAX_I64)):
        fields[name] = _options.integer(name, fields[name], -1, most)
    fields["softmax_scale"] = fields["softmax_scale"] or 0.0
    fields["cache_dtype"] = 0 if fields["cache_dtype"] == dtype else fields["cache_dtype"]
    fields["sinks_dtype"] = 0 if sinks_dtype == dtype and dtype != ea.F32 else sinks_dtype
    return ea.Problem(struct_size=ctypes.sizeof(ea.Problem), **fields)


# ---- plans without a batch -----------------------------------------------------------------------------

_CODES = {name: code for code, name in DTYPE_NAMES.items()}
_CODES.update(
    bfloat16=ea.BF16, float16=ea.F16, float32=ea.F32, float8_e4m3fn=ea.E4M3, float8_e5m2=ea.E5M2, int32=ea.I32,
    int64=ea.I64,
)  # fmt: skip


def _dtype_code(name: str, dtype: Any, allowed: tuple[int, ...]) -> int:
    text = str(getattr(dtype, "name", dtype)).replace("torch.", "")
    code = _CODES.get(text)
    if code not in allowed:
        names = ", ".join(other for other, one in _CODES.items() if one in allowed)
        raise InvalidError(f"{name}: found {text if code else _options.described(dtype)}, allowed {names}")
    return code


def device_of(device: Any) -> int:
    """-1 for "cpu", the ordinal of "cuda" and "cuda:1" (a torch.device too)."""
    text = str(device)
    kind, _, ordinal = text.partition(":")
    if kind == "cpu":
        return -1
    if kind == "cuda" and (not ordinal or ordinal.isdecimal()):
        return _options.integer("device", int(ordinal[:20] or 0), 0, MAX_I32)
    raise InvalidError(f"device: found {_options.described(text)}, allowed cpu, cuda, cuda:N")


def plan(
    *,
    num_q_heads: int,
    num_kv_heads: int,
    head_dim: int,
    head_dim_v: int = 0,
    dtype: Any = "bf16",
    cache_dtype: Any = None,
    index_dtype: Any = "i32",
    page_size: int = 1,
    shared_kv: bool = False,
    causal: bool = True,
    has_sinks: bool = False,
    has_custom_mask: bool = False,
    skip_prefix_custom_mask: bool = True,
    skip_prefix: bool = False,
    skip_extend: bool = False,
    window_left: int = -1,
    xai_temperature_len: int = 0,
    softmax_scale: Optional[float] = None,
    logit_cap: float = 0.0,
    k_scale: Optional[float] = 1.0,
    v_scale: Optional[float] = 1.0,
    device: Any = "cpu",
    family: Optional[str] = None,
    stages: int = 0,
) -> PlanInfo:
    """What extend_attention would run for such a call, and why.

    device: "cpu", "cuda" or "cuda:N", or an architecture that need not be here ("sm_90").
    stages: the pipeline depth on a GPU, 0 for automatic; DoesNotFitError where it does not fit.
    The other arguments are those of extend_attention and ea_problem.
    """
    (causal, softmax_scale, logit_cap, window_left, skip_prefix_custom_mask, k_scale, v_scale, xai_temperature_len,
     skip_prefix, skip_extend, family, stages) = checked_options(
        causal, softmax_scale, logit_cap, window_left, skip_prefix_custom_mask, k_scale, v_scale, xai_temperature_len,
        skip_prefix, skip_extend, family, stages)  # fmt: skip
    code = _dtype_code("dtype", dtype, _FLOAT_TYPES)
    problem = _problem(
        dtype=code,
        cache_dtype=code if cache_dtype is None else _dtype_code("cache_dtype", cache_dtype, (code, *_8_BIT_TYPES)),
        index_dtype=_dtype_code("index_dtype", index_dtype, _INDEX_TYPES),
        mask_indptr_dtype=ea.I64,
        sinks_dtype=ea.F32,
        num_q_heads=num_q_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        head_dim_v=head_dim_v,
        page_size=page_size,
        shared_kv=_options.boolean("shared_kv", shared_kv),
        causal=causal,
        has_sinks=_options.boolean("has_sinks", has_sinks),
        has_custom_mask=_options.boolean("has_custom_mask", has_custom_mask),
        skip_prefix_custom_mask=skip_prefix_custom_mask,
        skip_prefix=skip_prefix,
        skip_extend=skip_extend,
        window_left=window_left,
        xai_temperature_len=xai_temperature_len,
        softmax_scale=softmax_scale,
        logit_cap=logit_cap,
        k_scale=k_scale,
        v_scale=v_scale,
    )
    if str(device).startswith("sm_"):
        info = ea.PlanInfo(struct_size=ctypes.sizeof(ea.PlanInfo))
        options = _plan_options(family, stages)
        arch = str(device).encode()
        ea.check(lib.ea_plan_for_arch(arch, ctypes.byref(problem), ctypes.byref(options), ctypes.byref(info)))
        return _info_of(info)
    return _Plan(device_of(device), problem, family, stages).info()


# ---- merging ---------------------------------------------------------------------------------------------


def _packed_lse(name: str, view: View, device: int, tokens: int, heads: int) -> View:
    _, shape, strides, code, on, _ = view
    if on != device:
        _refuse_device(name, view, device)
    if code != ea.F32:
        _refuse_type(name, view, "f32")
    if len(shape) != 2 or shape[0] != tokens or shape[1] != heads:
        _refuse_shape(name, view, f"[{tokens}, {heads}]")
    if (strides[1] != 1 and heads > 1) or (strides[0] != heads and tokens > 1):
        raise InvalidError(f"{name}: found strides {_shape_text(strides)}, allowed packed ones")
    return view


def merge_run(
    out_a: Any, lse_a: Any, out_b: Any, lse_b: Any, out: Any = None, lse: Any = None, stream: Optional[int] = None
) -> tuple[Any, Any]:
    """See extattn.merge."""
    if stream is not None:
        stream = _options.integer("stream", stream, 0, 2**64 - 1)
    framework = framework_of(out_a)
    a_view = framework.view("out_a", out_a)
    _, a_shape, a_strides, dtype, device, _ = a_view
    if dtype not in _FLOAT_TYPES:
        _refuse_type("out_a", a_view, _FLOAT_NAMES)
    if len(a_shape) != 3:
        _refuse_shape("out_a", a_view, "[tokens, heads, head_dim_v]")
    if a_strides[2] != 1 and a_shape[2] > 1:
        _refuse_stride("out_a", a_view)
    if device < 0 and stream is not None:
        _refuse_stream(stream)
    tokens, heads, dim = a_shape
    b_view = framework.view("out_b", out_b)
    framework.refuse_gradients(
        (("out_a", out_a), ("lse_a", lse_a), ("out_b", out_b), ("lse_b", lse_b), ("out", out), ("lse", lse))
    )
    if out is None:
        out = framework.empty_like(out_a, (tokens, heads, dim))
        out_view = framework_of(out).view("out", out)
    else:
        out_view = framework_of(out).written("out", out)
    for name, view in (("out_b", b_view), ("out", out_view)):
        if view[4] != device:
            _refuse_device(name, view, device)
        if view[3] != dtype:
            _refuse_type(name, view, f"{_type_name(dtype)}, as out_a")
        if tuple(view[1]) != tuple(a_shape):
            _refuse_shape(name, view, f"{_shape_text(a_shape)}, as out_a")
        if view[2][2] != 1 and dim > 1:
            _refuse_stride(name, view)
    lse_a_view = _packed_lse("lse_a", framework.view("lse_a", lse_a), device, tokens, heads)
    lse_b_view = _packed_lse("lse_b", framework.view("lse_b", lse_b), device, tokens, heads)
    if lse is None:
        lse = framework.empty_like(out_a, (tokens, heads), f32=True)
        lse_view = framework_of(lse).view("lse", lse)
    else:
        lse_view = framework_of(lse).written("lse", lse)
    _packed_lse("lse", lse_view, device, tokens, heads)
    scratch = _scratch
    words: list[int] = []
    for name, view in (("out_a", a_view), ("out_b", b_view), ("out", out_view)):
        words += (view[0], _stride(name, view, 0), _stride(name, view, 1))
    ea.MERGE.pack_into(
        scratch.merge, 0, ea.MERGE.size, dtype, tokens, heads, dim, *words, lse_a_view[0], lse_b_view[0], lse_view[0]
    )
    used = None if device < 0 else framework.stream(device) if stream is None else stream
    ea.check(lib.ea_merge(_context(device).handle, scratch.merge_address, used))
    return out, lse


# ---- finishing and capturing -------------------------------------------------------------------------------


def finish(like: Any, result: Any, stream: Optional[int]) -> Any:
    """The result in the caller's framework; only DLPack's consumers need anything done."""
    if result is None:
        return None
    framework = framework_of(like)
    if framework.name != "dlpack":
        return result
    return framework.finish(result, framework.view("q", like)[4], stream or 0)


def capture_options(
    directory: Any, call: Any, slower_ms: Any, failing: Optional[bool], max_files: Any
) -> ea.CaptureOptions:
    try:
        folder = os.fsencode(directory)
    except TypeError:
        raise InvalidError(f"directory: found {_options.described(directory)}, allowed a path") from None
    if b"\0" in folder:
        raise InvalidError(f"directory: found {_options.described(folder)}, allowed a path, which has no byte 0")
    call = _options.integer("call", call, 0, MAX_I64)
    slower_ms = _options.number("slower_ms", slower_ms)
    if failing is None:
        failing = not call and not slower_ms
    return ea.CaptureOptions(
        ctypes.sizeof(ea.CaptureOptions),
        folder,
        call,
        slower_ms,
        _options.boolean("failing", failing),
        _options.integer("max_files", max_files, 1, MAX_I32),
    )


@contextlib.contextmanager
def capturing(options: ea.CaptureOptions) -> Iterator[None]:
    def apply() -> None:
        for context in _contexts.values():
            context.capture(_captures[-1] if _captures else None)

    with _lock:
        _captures.append(options)
        try:
            _context(-1)
            apply()
        except BaseException:
            _captures.remove(options)
            apply()
            raise
    try:
        yield
    finally:
        with _lock:
            _captures.remove(options)
            apply()


__all__ = [
    "PlanInfo",
    "capture_options",
    "capturing",
    "checked_options",
    "device_of",
    "finish",
    "merge_run",
    "plan",
    "run",
    "synchronize",
]
