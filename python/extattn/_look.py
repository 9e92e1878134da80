"""The short way of a call on torch tensors, in C: libextattn_look.so, beside the library (python/look.c).

Its functions become Python's own, without ctypes in between, which takes as long as all they do. Where the file is
not there (a library named by EXTATTN_LIBRARY), or torch has no exchange of C functions (2.11 has), calls take the
way through Python, whose results and refusals are the same.
"""

from __future__ import annotations

import ctypes
import os
import threading
from typing import Any, Callable, Optional

from extattn._library import lib, library_path

Functions = tuple[Callable[..., Optional[bytes]], Callable[[Any], Optional[int]], Callable[..., int]]

_REQUIRES_GRAD = "requires_grad"
_METHODS = 3  # in ea_look_methods, in the order of Functions


class _Method(ctypes.Structure):
    """A PyMethodDef."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    ]


class _Exchange(ctypes.Structure):
    """dlpack.h's DLPackExchangeAPI of version 1."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("older", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p),
        ("managed_from_object", ctypes.c_void_p),
        ("object_from_managed", ctypes.c_void_p),
        ("tensor_from_object", ctypes.c_void_p),
        ("current_stream", ctypes.c_void_p),
    ]


def _load() -> Any:
    try:
        return ctypes.PyDLL(os.path.join(os.path.dirname(library_path()), "libextattn_look.so"))
    except OSError:
        return None


def _tensor_from_object(tensor_type: type) -> int:
    """The framework's dltensor_from_py_object_no_sync; 0: it has none."""
    capsule = getattr(tensor_type, "__dlpack_c_exchange_api__", None)
    if capsule is None:
        return 0
    pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    exchange = _Exchange.from_address(pointer_of(capsule, b"dlpack_exchange_api"))
    return (exchange.tensor_from_object or 0) if exchange.major == 1 else 0


class Look(threading.local):
    """look, workspace_bytes and run of a thread, which share what was looked at last; None: not possible here."""

    functions: Optional[Functions] = None

    def __init__(self, tensor_type: type, is_grad_enabled: Callable[[], bool]) -> None:
        library, tensor_from_object = _load(), _tensor_from_object(tensor_type)
        if library is None or not tensor_from_object:
            return
        state = bytearray(ctypes.c_size_t.in_dll(library, "ea_look_state_bytes").value)
        self.kept = (is_grad_enabled, _REQUIRES_GRAD)
        objects = (None, True, False, int, float, str, *self.kept)
        first: list[Any] = [
            *map(id, objects),
            tensor_from_object,
            ctypes.cast(lib.ea_workspace_size, ctypes.c_void_p).value,
            ctypes.cast(lib.ea_run, ctypes.c_void_p).value,
        ]
        (ctypes.c_void_p * len(first)).from_buffer(state)[:] = first
        make = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)(
            ("PyCFunction_NewEx", ctypes.pythonapi)
        )
        methods = (_Method * _METHODS).in_dll(library, "ea_look_methods")
        self.functions = tuple(make(ctypes.addressof(method), state, None) for method in methods)


__all__ = ["Functions", "Look"]
