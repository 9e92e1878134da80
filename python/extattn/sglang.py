"""SGLang's extend attention by extattn.

    import extattn.sglang
    extattn.sglang.install()

puts this module's functions where SGLang keeps its Triton ones; what they refuse goes to the
original, and the reason is logged once. uninstall() puts the originals back. A server does it in
all of its processes by the environment: EXTATTN_SGLANG=1 python -m sglang.launch_server ...

The functions have the names, arguments and meaning of SGLang's own, those of the releases 0.5.18
(August 2026) to 0.5.23, and may be called without SGLang too (then what is refused is raised). They
wait for nothing on a GPU, so they can be captured in CUDA graphs.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import logging
import os
import sys
import threading
from typing import Any, Callable, Optional

import torch
from torch import Tensor

from extattn import _attention, _options
from extattn._library import DeviceError, Error, InternalError, InvalidError, OutOfMemoryError, UnsupportedError

_log = logging.getLogger("extattn.sglang")
_run = _attention.run

# ---- arguments of SGLang as ours -----------------------------------------------------------------


def _int32(x: Optional[Tensor]) -> Optional[Tensor]:
    return x if x is None or x.dtype is torch.int32 else x.to(torch.int32)


def _check_tensors(**tensors: Any) -> None:
    for name, x in tensors.items():
        if not isinstance(x, Tensor):
            raise InvalidError(f"{name}: found {_options.described(x)}, allowed torch.Tensor")


def _check_tensors_or_none(**tensors: Any) -> None:
    _check_tensors(**{name: x for name, x in tensors.items() if x is not None})


def _scale(name: str, scale: Any) -> float:
    if isinstance(scale, Tensor):
        raise UnsupportedError(f"{name}: found a tensor, whose value is not known to the host, allowed a float")
    return _options.scale(name, scale)


def _number(name: str, x: Any) -> float:
    """None: 0."""
    return 0.0 if x is None else _options.number(name, x)


def _length(name: str, length: Any) -> int:
    """0 for None and for what is negative."""
    return 0 if length is None else max(_options.integer(name, length, -_options.MAX_I64, _options.MAX_I64), 0)


def _window(sliding_window_size: Any, is_causal: bool) -> int:
    window = _length("sliding_window_size", sliding_window_size)
    _options.integer("sliding_window_size", window, 0, _options.MAX_I32)
    if window and not is_causal:
        raise UnsupportedError(
            f"sliding_window_size: found {window} without the causal rule, on which SGLang's releases differ,"
            " allowed with is_causal"
        )
    return window or -1


def _check_score_mod(score_mod: Any) -> None:
    if score_mod is not None:
        raise UnsupportedError("score_mod: found a function, allowed None")


def _pool(name: str, buffer: Tensor, page_size: int) -> Tensor:
    """SGLang's pools are [slots, heads, dim], slots counted through, or [pages, page_size, heads, dim]."""
    if buffer.dim() == 4 and buffer.shape[1] != page_size:
        raise UnsupportedError(f"{name}: found {buffer.shape[1]} rows a page, allowed page_size, {page_size}")
    return buffer


def _sinks(sinks: Optional[Tensor], q: Tensor) -> Optional[Tensor]:
    if sinks is None or sinks.dtype is torch.float32 or sinks.dtype is q.dtype:
        return sinks
    return sinks.to(torch.float32)


def _contiguous_rows(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def extend_attention_fwd(
    q_extend: Tensor,
    k_extend: Tensor,
    v_extend: Tensor,
    o_extend: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    qo_indptr: Tensor,
    kv_indptr: Tensor,
    kv_indices: Tensor,
    custom_mask: Optional[Tensor],
    is_causal: bool,
    mask_indptr: Optional[Tensor],
    max_len_extend: int,
    k_scale: Any,
    v_scale: Any,
    sm_scale: Optional[float] = None,
    logit_cap: float = 0.0,
    skip_prefix_custom_mask: bool = True,
    sliding_window_size: int = -1,
    sinks: Optional[Tensor] = None,
    window_kv_offsets: Optional[Tensor] = None,
    xai_temperature_len: int = -1,
    lse_extend: Optional[Tensor] = None,
    skip_prefix: bool = False,
    skip_extend: bool = False,
    page_size: int = 1,
    score_mod: Any = None,
    aux_tensors: Any = None,
    extend_seq_lens_cpu: Any = None,
    identity_kv_indices: bool = False,
) -> None:
    """Attention of the new tokens to their prefix in the pool and to themselves, into o_extend.

    max_len_extend and extend_seq_lens_cpu, which shape a Triton grid, are not needed.
    """
    _check_score_mod(score_mod)
    boolean, skip_extend = _options.boolean, _options.boolean("skip_extend", skip_extend)
    is_causal = boolean("is_causal", is_causal)
    page_size = _options.integer("page_size", page_size, 1, _options.MAX_I32)
    _check_tensors(
        q_extend=q_extend, o_extend=o_extend, k_buffer=k_buffer, v_buffer=v_buffer, qo_indptr=qo_indptr,
        kv_indptr=kv_indptr,
    )  # fmt: skip
    _check_tensors_or_none(
        custom_mask=custom_mask, mask_indptr=mask_indptr, sinks=sinks, window_kv_offsets=window_kv_offsets,
        lse_extend=lse_extend,
    )  # fmt: skip
    if not skip_extend:
        _check_tensors(k_extend=k_extend, v_extend=v_extend)
    masked = custom_mask is not None
    if boolean("identity_kv_indices", identity_kv_indices):
        slots = k_buffer.shape[:-2].numel()
        kv_indices = torch.arange(slots, dtype=torch.int32, device=q_extend.device)
    _check_tensors(kv_indices=kv_indices)
    _run(
        q_extend,
        None if skip_extend else k_extend,
        None if skip_extend else v_extend,
        _pool("k_buffer", k_buffer, page_size),
        _pool("v_buffer", v_buffer, page_size),
        _int32(qo_indptr),
        _int32(kv_indptr),
        kv_indices,
        o_extend,
        lse_extend,
        False,
        # A custom mask replaces the causal rule; with it, SGLang's window looks back only.
        is_causal or masked,
        _number("sm_scale", sm_scale) or None,
        max(_number("logit_cap", logit_cap), 0.0),
        _window(sliding_window_size, is_causal),
        _sinks(sinks, q_extend),
        custom_mask.reshape(-1) if custom_mask is not None else None,
        mask_indptr if masked else None,
        _int32(window_kv_offsets) if masked else None,
        skip_prefix_custom_mask,
        _scale("k_scale", k_scale),
        _scale("v_scale", v_scale),
        _length("xai_temperature_len", xai_temperature_len),
        skip_prefix,
        skip_extend,
    )


def build_unified_kv_indices(
    prefix_kv_indptr: Tensor,
    prefix_kv_indices: Tensor,
    extend_start_loc: Tensor,
    extend_seq_lens: Tensor,
    extend_kv_indices: Tensor,
    bs: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """One list of slots a sequence, its prefix before its new tokens.

    Returns (kv_indptr [bs+1], kv_indices int64 [all prefixes and new tokens], prefix_lens [bs]).
    """
    _check_tensors(
        prefix_kv_indptr=prefix_kv_indptr, prefix_kv_indices=prefix_kv_indices, extend_start_loc=extend_start_loc,
        extend_seq_lens=extend_seq_lens, extend_kv_indices=extend_kv_indices,
    )  # fmt: skip
    bs = _options.integer("bs", bs, 0, prefix_kv_indptr.shape[0] - 1)
    prefix_lens = prefix_kv_indptr[1 : bs + 1] - prefix_kv_indptr[:bs]
    lens = prefix_lens + extend_seq_lens[:bs]
    indptr = torch.nn.functional.pad(torch.cumsum(lens, dim=0), (1, 0))
    room = prefix_kv_indices.shape[0] + extend_kv_indices.shape[0]
    if room == 0 or bs == 0:
        return indptr, torch.empty(room, dtype=torch.int64, device=indptr.device), prefix_lens

    # Which sequence each place belongs to, and how far into it; places past the end are the last
    # sequence's, and their slots are never read.
    place = torch.arange(room, dtype=torch.int64, device=indptr.device)
    seq = torch.bucketize(place, indptr[1:], right=True).clamp_(max=bs - 1)
    within = place - indptr[seq]
    in_prefix = within < prefix_lens[seq]
    from_prefix = prefix_kv_indptr[:bs][seq] + within
    from_extend = extend_start_loc[:bs][seq] + within - prefix_lens[seq]
    return indptr, _pick(in_prefix, prefix_kv_indices, from_prefix, extend_kv_indices, from_extend), prefix_lens


def _take(values: Tensor, at: Tensor) -> Tensor:
    """values[at], where places that nothing will read may lie outside."""
    return values[at.clamp(0, values.shape[0] - 1)].to(torch.int64)


def _pick(first: Tensor, a: Tensor, at_a: Tensor, b: Tensor, at_b: Tensor) -> Tensor:
    if a.shape[0] == 0:
        return _take(b, at_b)
    if b.shape[0] == 0:
        return _take(a, at_a)
    return torch.where(first, _take(a, at_a), _take(b, at_b))


def _rows_of(buffer: Tensor, slots: Tensor, page_size: int, dtype: torch.dtype) -> Tensor:
    """The pool's rows of some slots, as new tokens of type dtype (8-bit floats become it exactly)."""
    as_stored = buffer
    if buffer.dtype.itemsize == 1:  # indexing 8-bit floats is not everywhere; bytes are
        as_stored = buffer.view(torch.uint8)
    if buffer.dim() == 4 and page_size == 1:
        rows = as_stored[slots, 0]
    elif buffer.dim() == 4:
        rows = as_stored[torch.div(slots, page_size, rounding_mode="floor"), slots % page_size]
    else:
        rows = as_stored[slots]
    return rows if buffer.dtype is dtype else rows.view(buffer.dtype).to(dtype)


def extend_attention_fwd_unified(
    q: Tensor,
    o: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    k_scale: Any,
    v_scale: Any,
    qo_indptr: Tensor,
    kv_indptr: Tensor,
    kv_indices: Tensor,
    prefix_lens: Tensor,
    max_len_extend: int,
    custom_mask: Optional[Tensor] = None,
    mask_indptr: Optional[Tensor] = None,
    sm_scale: Optional[float] = None,
    logit_cap: float = 0.0,
    is_causal: bool = True,
    sliding_window_size: int = -1,
    sinks: Optional[Tensor] = None,
    window_start_pos: Optional[Tensor] = None,
    xai_temperature_len: int = -1,
    page_size: int = 1,
    score_mod: Any = None,
    aux_tensors: Any = None,
) -> None:
    """The same with prefix and new tokens both in the pool, under one list of slots a sequence.

    The new tokens' rows are copied out of the pool and the prefixes' slots moved together, by a
    dozen small operations of torch; results are those of extend_attention_fwd, bit for bit (the
    order of sums here never depends on where the prefix ends). window_start_pos moves queries
    and keys alike, so it changes nothing.
    """
    _check_score_mod(score_mod)
    _check_tensors(
        q=q, o=o, k_buffer=k_buffer, v_buffer=v_buffer, qo_indptr=qo_indptr, kv_indptr=kv_indptr,
        kv_indices=kv_indices, prefix_lens=prefix_lens,
    )  # fmt: skip
    _check_tensors_or_none(custom_mask=custom_mask, mask_indptr=mask_indptr, sinks=sinks)
    is_causal = _options.boolean("is_causal", is_causal)
    page_size = _options.integer("page_size", page_size, 1, _options.MAX_I32)
    if _length("xai_temperature_len", xai_temperature_len):
        raise UnsupportedError(
            f"xai_temperature_len: found {xai_temperature_len}, for which SGLang's unified kernel has a formula of"
            " its own, allowed none"
        )
    k_factor, v_factor = _scale("k_scale", k_scale), _scale("v_scale", v_scale)
    masked = custom_mask is not None
    window = _window(sliding_window_size, is_causal)
    k_pool, v_pool = _pool("k_buffer", k_buffer, page_size), _pool("v_buffer", v_buffer, page_size)
    if masked and custom_mask is not None:
        custom_mask = custom_mask.reshape(-1)
    rows_of_pages = page_size if k_pool.dim() == 4 else 1

    tokens, bs = q.shape[0], qo_indptr.shape[0] - 1
    room = kv_indices.shape[0]
    prefix_indptr = torch.nn.functional.pad(torch.cumsum(prefix_lens[:bs], dim=0, dtype=torch.int32), (1, 0))
    if bs == 0 or room == 0 or tokens == 0:
        slots = kv_indices[:0].to(torch.int64).new_zeros(tokens)
        prefix_indices = kv_indices
    else:
        token = torch.arange(tokens, dtype=torch.int32, device=q.device)
        seq = torch.bucketize(token, qo_indptr[1:], right=True).clamp_(max=bs - 1)
        at = kv_indptr[:bs][seq] + prefix_lens[:bs][seq] + (token - qo_indptr[:bs][seq])
        slots = _take(kv_indices, at)
        place = torch.arange(room, dtype=torch.int32, device=q.device)
        seq = torch.bucketize(place, prefix_indptr[1:], right=True).clamp_(max=bs - 1)
        prefix_indices = _take(kv_indices, kv_indptr[:bs][seq] + (place - prefix_indptr[seq]))
        # Queries past the batch's end (padding) look at what was never a slot: any row will do.
        slots = slots.clamp_(0, k_pool.shape[0] * rows_of_pages - 1)
    _run(
        q,
        _rows_of(k_pool, slots, page_size, q.dtype),
        _rows_of(v_pool, slots, page_size, q.dtype),
        k_pool,
        v_pool,
        _int32(qo_indptr),
        prefix_indptr,
        prefix_indices,
        o,
        None,
        False,
        is_causal or masked,
        (_number("sm_scale", sm_scale) or 1.0 / q.shape[-1] ** 0.5) * k_factor,  # here k_scale is for every key
        max(_number("logit_cap", logit_cap), 0.0),
        window,
        _sinks(sinks, q),
        custom_mask,
        mask_indptr if masked else None,
        None,
        False,  # the mask covers the prefix
    )
    if v_factor != 1.0:
        o.mul_(v_factor)  # v_scale too


def _no_positive_infinity(lse: Tensor) -> Tensor:
    """SGLang takes +inf as "nothing seen" too; NaN stays what it is."""
    return torch.nan_to_num(lse.contiguous(), nan=float("nan"), posinf=float("-inf"), neginf=float("-inf"))


def merge_state(
    prefix_output: Tensor,
    prefix_lse: Tensor,
    suffix_output: Tensor,
    suffix_lse: Tensor,
    output: Optional[Tensor] = None,
    output_lse: Optional[Tensor] = None,
) -> tuple[Tensor, Optional[Tensor]]:
    """Two partial results as one; a part whose lse is infinite counts for nothing."""
    _check_tensors(
        prefix_output=prefix_output, prefix_lse=prefix_lse, suffix_output=suffix_output, suffix_lse=suffix_lse
    )
    _check_tensors_or_none(output=output, output_lse=output_lse)
    return _attention.merge_run(
        _contiguous_rows(prefix_output),
        _no_positive_infinity(prefix_lse),
        _contiguous_rows(suffix_output),
        _no_positive_infinity(suffix_lse),
        output,
        output_lse,
    )


# ---- putting them in place -------------------------------------------------------------------------

_MODULES = (
    # Where SGLang keeps what is replaced: since its kernels moved, and before.
    ("sglang.kernels.ops.attention.extend_attention", "sglang.srt.layers.attention.triton_ops.extend_attention"),
    ("sglang.kernels.ops.attention.merge_state", "sglang.srt.layers.attention.triton_ops.merge_state"),
    ("sglang.srt.layers.attention.merge_state",),
)
_REPLACEMENTS: dict[str, Callable[..., Any]] = {
    "extend_attention_fwd": extend_attention_fwd,
    "extend_attention_fwd_unified": extend_attention_fwd_unified,
    "build_unified_kv_indices": build_unified_kv_indices,
    "merge_state_triton": merge_state,
    "merge_state": merge_state,
}

_lock = threading.RLock()
_installed: list[tuple[Any, str, Any]] = []  # module, name, what was there
_said: set[tuple[str, str]] = set()


def _say_once(name: str, reason: str) -> None:
    argument = reason.split(":", 1)[0]  # once a reason, not once a number
    if (name, argument) not in _said:
        _said.add((name, argument))
        _log.warning("%s: SGLang's own is used, as extattn refuses %s", name, reason)


def _with_fallback(name: str, ours: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return ours(*args, **kwargs)
        except (DeviceError, InternalError, OutOfMemoryError):
            raise  # not a refusal
        except Error as refused:
            # Refusals come before anything is written or enqueued.
            _say_once(name, str(refused))
        except TypeError as unknown:
            # An argument of a later release. Those that came with this one are all named above.
            if unknown.__traceback__ is None or unknown.__traceback__.tb_next is not None:
                raise
            _say_once(name, f"arguments: {unknown}")
        return original(*args, **kwargs)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = ours.__doc__
    call.extattn_original = original  # type: ignore[attr-defined]
    return call


def _import_one(names: tuple[str, ...], broken: list[str]) -> Any:
    """The first that is there; one that is there and does not import is said in broken."""
    for name in names:
        try:
            return importlib.import_module(name)
        except Exception as error:  # an import runs whatever is in the file
            missing = error.name if isinstance(error, ModuleNotFoundError) else None
            if missing is None or not f"{name}.".startswith(f"{missing}."):
                broken.append(f"{name}: {type(error).__name__}: {error}".splitlines()[0])
    return None


def _put(module: Any, name: str, value: Any) -> None:
    _installed.append((module, name, getattr(module, name)))
    setattr(module, name, value)


def _replace_in(module: Any) -> None:
    for name, ours in _REPLACEMENTS.items():
        original = vars(module).get(name)
        if original is None or hasattr(original, "extattn_original"):
            continue
        replacement = _with_fallback(name, ours, original)
        _put(module, name, replacement)
        _replace_copies(original, replacement)


def install() -> list[str]:
    """Puts the functions above in the place of SGLang's; returns what was replaced, "module.name".

    Modules that took a function by name before (`from ... import`) are seen to as well. What an
    object took (the Triton backend's own attributes) is not: install before the server starts.
    Imports the modules in question, which makes SGLang look at the GPU; calling it again does nothing.
    """
    broken: list[str] = []
    with _lock:
        if not _installed:
            for names in _MODULES:
                module = _import_one(names, broken)
                if module is not None:
                    _replace_in(module)
        if not _installed:
            found = f"an SGLang that does not import ({broken[0]})" if broken else "no SGLang with extend attention"
            raise ImportError(f"extattn.sglang: found {found}, allowed sglang 0.5.18 or later")
        for reason in broken:
            _log.warning("left as it is, since it does not import: %s", reason)
        return [f"{module.__name__}.{name}" for module, name, _ in _installed]


class _WhenImported(importlib.abc.MetaPathFinder):
    """Replaces in a module of SGLang's once SGLang itself imports it."""

    names = frozenset(name for names in _MODULES for name in names)
    looking = False

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name not in self.names or self.looking:
            return None
        self.looking = True  # the other finders are asked
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.looking = False
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_replace(module: Any) -> None:
            execute(module)
            with _lock:
                _replace_in(module)

        spec.loader.exec_module = execute_and_replace  # type: ignore[method-assign]
        return spec


def _install_when_imported() -> None:
    with _lock:
        if any(isinstance(finder, _WhenImported) for finder in sys.meta_path):
            return
        for name in _WhenImported.names:
            if name in sys.modules:
                _replace_in(sys.modules[name])
        sys.meta_path.insert(0, _WhenImported())


def _replace_copies(original: Any, replacement: Any) -> None:
    for module in list(sys.modules.values()):
        if not getattr(module, "__name__", "").startswith("sglang"):
            continue
        for name, value in list(vars(module).items()):
            if value is original:
                _put(module, name, replacement)


def uninstall() -> None:
    """Puts SGLang's own functions back."""
    with _lock:
        sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _WhenImported)]
        while _installed:
            module, name, value = _installed.pop()
            setattr(module, name, value)
        _said.clear()


def plugin() -> None:
    """SGLang calls this in each of its processes (entry point sglang.srt.plugins).

    Some of them never touch a GPU and are not to begin here, so nothing is imported: modules are
    seen to when SGLang imports them.
    """
    if os.environ.get("EXTATTN_SGLANG", "") not in ("", "0"):
        _install_when_imported()


__all__ = [
    "build_unified_kv_indices",
    "extend_attention_fwd",
    "extend_attention_fwd_unified",
    "install",
    "merge_state",
    "plugin",
    "uninstall",
]
