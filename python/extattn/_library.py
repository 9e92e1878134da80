"""The C library through ctypes: its structs, its functions, and its errors as exceptions.

Everything here mirrors include/extattn.h; tests/python/test_header.py compares the two.
"""

from __future__ import annotations

import ctypes
import os
import struct
from typing import Any

F32, F16, BF16, E4M3, E5M2, I32, I64 = 1, 2, 3, 4, 5, 6, 7
BOOL, U8 = 101, 102  # not types of the library: what a custom mask may be made of
DTYPE_NAMES = {F32: "f32", F16: "f16", BF16: "bf16", E4M3: "e4m3", E5M2: "e5m2", I32: "i32", I64: "i64",
               BOOL: "bool", U8: "u8"}  # fmt: skip

FAMILIES = {"auto": 0, "reference": 1, "cpu": 2, "portable": 3, "hopper": 4}
DEVICE_CPU, DEVICE_CUDA = 0, 1


class Error(RuntimeError):
    """What the library refuses or fails at. The text is one line: argument, found, allowed."""

    __module__ = "extattn"


class InvalidError(Error, ValueError):
    """An argument is wrong."""

    __module__ = "extattn"


class UnsupportedError(Error):
    """The argument is right, but this device or kernel family cannot do it."""

    __module__ = "extattn"


class NoDeviceError(Error):
    """No such device, or no driver for it."""

    __module__ = "extattn"


class OutOfMemoryError(Error, MemoryError):
    """Host or device memory."""

    __module__ = "extattn"


class DoesNotFitError(Error):
    """The asked pipeline depth needs more shared memory than the device has."""

    __module__ = "extattn"


class DeviceError(Error):
    """The driver reported a failure."""

    __module__ = "extattn"


class InternalError(Error):
    """A bug in the library."""

    __module__ = "extattn"


_ERRORS: dict[int, type[Error]] = {
    1: InvalidError,
    2: UnsupportedError,
    3: NoDeviceError,
    4: OutOfMemoryError,
    5: DoesNotFitError,
    6: DeviceError,
    7: InternalError,
}


class ContextOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("device", ctypes.c_int),
        ("device_ordinal", ctypes.c_int32),
        ("num_threads", ctypes.c_int32),
        ("isa", ctypes.c_int),
    ]


class DeviceInfo(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("device", ctypes.c_int),
        ("device_ordinal", ctypes.c_int32),
        ("name", ctypes.c_char * 128),
        ("arch", ctypes.c_char * 16),
        ("isa", ctypes.c_int),
        ("num_threads", ctypes.c_int32),
        ("multiprocessors", ctypes.c_int32),
        ("smem_limit_bytes", ctypes.c_int64),
        ("memory_bytes", ctypes.c_int64),
        ("driver_version", ctypes.c_int32),
    ]


class Problem(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("dtype", ctypes.c_int),
        ("cache_dtype", ctypes.c_int),
        ("index_dtype", ctypes.c_int),
        ("mask_indptr_dtype", ctypes.c_int),
        ("sinks_dtype", ctypes.c_int),
        ("num_q_heads", ctypes.c_int32),
        ("num_kv_heads", ctypes.c_int32),
        ("head_dim", ctypes.c_int32),
        ("head_dim_v", ctypes.c_int32),
        ("page_size", ctypes.c_int32),
        ("shared_kv", ctypes.c_bool),
        ("causal", ctypes.c_bool),
        ("has_sinks", ctypes.c_bool),
        ("has_custom_mask", ctypes.c_bool),
        ("skip_prefix_custom_mask", ctypes.c_bool),
        ("skip_prefix", ctypes.c_bool),
        ("skip_extend", ctypes.c_bool),
        ("window_left", ctypes.c_int32),
        ("xai_temperature_len", ctypes.c_int64),
        ("softmax_scale", ctypes.c_double),
        ("logit_cap", ctypes.c_double),
        ("k_scale", ctypes.c_double),
        ("v_scale", ctypes.c_double),
    ]


class PlanOptions(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("family", ctypes.c_int), ("stages", ctypes.c_int32)]


class PlanInfo(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("family", ctypes.c_int),
        ("kernel", ctypes.c_char * 64),
        ("tile_m", ctypes.c_int32),
        ("tile_n", ctypes.c_int32),
        ("stages", ctypes.c_int32),
        ("max_stages", ctypes.c_int32),
        ("threads", ctypes.c_int32),
        ("smem_bytes", ctypes.c_int64),
        ("smem_limit_bytes", ctypes.c_int64),
        ("registers", ctypes.c_int32),
        ("reason", ctypes.c_char * 256),
    ]


class CaptureOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("directory", ctypes.c_char_p),
        ("call", ctypes.c_int64),
        ("slower_ms", ctypes.c_double),
        ("failing", ctypes.c_bool),
        ("max_files", ctypes.c_int32),
    ]


# ea_batch is 38 words of 8 bytes and ea_merge_args has two ints in between; both are packed in
# one go, which is several times faster than setting the fields of a ctypes.Structure.
BATCH = struct.Struct("@38q")
MERGE = struct.Struct("@qiqii12q")


def library_path() -> str:
    override = os.environ.get("EXTATTN_LIBRARY")
    if override:
        return override
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "libextattn.so")


def _load() -> Any:
    path = library_path()
    try:
        loaded = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(
            f"extattn: cannot load the library: {error} (installed by pip, or named by EXTATTN_LIBRARY)"
        ) from None
    pointer, size, status = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "ea_version": (ctypes.c_char_p, []),
        "ea_last_error": (ctypes.c_char_p, []),
        "ea_context_create": (status, [pointer, pointer]),
        "ea_context_destroy": (None, [pointer]),
        "ea_context_info": (status, [pointer, pointer]),
        "ea_context_capture": (status, [pointer, pointer]),
        "ea_cuda_device_count": (ctypes.c_int32, []),
        "ea_plan_create": (status, [pointer, pointer, pointer, pointer]),
        "ea_plan_destroy": (None, [pointer]),
        "ea_plan_get_info": (status, [pointer, pointer]),
        "ea_plan_for_arch": (status, [ctypes.c_char_p, pointer, pointer, pointer]),
        "ea_workspace_size": (status, [pointer, pointer, pointer]),
        "ea_run": (status, [pointer, pointer, pointer, size, pointer]),
        "ea_validate": (status, [pointer, pointer, pointer, size, pointer]),
        "ea_merge": (status, [pointer, pointer, pointer]),
    }
    for name, (restype, argtypes) in signatures.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = restype, argtypes
    return loaded


lib = _load()


def raise_status(status: int) -> None:
    """Raises the exception of a status that is not EA_OK, with the library's text."""
    text = lib.ea_last_error().decode("utf-8", "replace")
    raise _ERRORS.get(status, InternalError)(text)


def check(status: int) -> None:
    if status:
        raise_status(status)


def version() -> str:
    """The version of the library that is running, "0.1.0"."""
    return str(lib.ea_version().decode())
