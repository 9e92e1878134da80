"""Arrays of any framework as what the library wants to know of them.

A view is the tuple (address, shape, strides in elements, type, device, keep): type is the library's
number, or the name of one that the library has not; device is -1 for the CPU and the GPU's ordinal
otherwise; keep is what has to stay alive as long as the view is used. torch tensors take a short way;
numpy and CuPy arrays say all of it themselves; everything else (JAX among them) comes in through DLPack.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Iterable
from typing import Any, Callable, NoReturn, Optional, Union

from extattn._library import BF16, BOOL, E4M3, E5M2, F16, F32, I32, I64, U8, InvalidError, UnsupportedError
from extattn._look import Look
from extattn._options import described

Type = Union[int, str]
View = tuple[int, Any, Any, Type, int, Any]

_NAMES = {
    "float32": F32,
    "float16": F16,
    "bfloat16": BF16,
    "float8_e4m3fn": E4M3,
    "float8_e5m2": E5M2,
    "int32": I32,
    "int64": I64,
    "bool": BOOL,
    "uint8": U8,
}


_numpy_codes: dict[Any, int] = {}  # a type's name takes numpy longer to say than the call takes


def _code_of(dtype: Any) -> Type:
    code = _numpy_codes.get(dtype)
    if code is None:
        code = _NAMES.get(str(dtype))
        if code is None:
            return str(dtype)
        _numpy_codes[dtype] = code
    return code


def _refuse_kind(name: str, x: Any, allowed: str, why: object = "") -> NoReturn:
    reason = f" ({str(why).splitlines()[0]})" if str(why) else ""
    raise InvalidError(f"{name}: found {described(x)}{reason}, allowed {allowed}")


def _refuse_read_only(name: str, x: Any) -> NoReturn:
    raise InvalidError(f"{name}: found {described(x)} that is read-only, allowed an array that may be written")


def refuse_gradient(name: str) -> NoReturn:
    raise InvalidError(
        f"{name}: found a tensor that requires grad, which nothing here computes, allowed {name}.detach(), or the call"
        " under torch.no_grad()"
    )


class Framework:
    """How arrays of one framework are looked at and made."""

    look: Optional[Look] = None  # the short way of a call

    def __init__(self, name: str) -> None:
        self.name = name

    def view(self, name: str, x: Any) -> View:
        raise NotImplementedError

    def written(self, name: str, x: Any) -> View:
        """The view of an array of the caller's that is to be written."""
        return self.view(name, x)

    def refuse_gradients(self, arrays: Iterable[tuple[str, Any]]) -> None:
        """Refuses an array through which the framework would want a gradient."""

    def empty_like(self, x: Any, shape: tuple[int, ...], f32: bool = False) -> Any:
        """A new array on x's device: of x's type, or float32."""
        raise NotImplementedError

    def workspace(self, x: Any, device: int, num_bytes: int, stream: int) -> tuple[int, Any]:
        """Address of GPU memory for one call on stream, 256-byte aligned, and what keeps it."""
        return _grown(device, stream, num_bytes), None

    def stream(self, device: int) -> int:
        """The current stream of a GPU; 0 is the default stream."""
        return 0

    def finish(self, x: Any, device: int, stream: int) -> Any:
        """The result as the framework's own array, once the call is enqueued."""
        return x


# ---- torch -----------------------------------------------------------------------------------


class _Torch(Framework):
    def __init__(self) -> None:
        super().__init__("torch")
        import torch

        self._torch = torch
        self.look = Look(torch.Tensor, torch.is_grad_enabled)
        self.codes: dict[Any, int] = {}
        for attribute, code in _NAMES.items():
            if hasattr(torch, attribute):
                self.codes[getattr(torch, attribute)] = code
        codes = self.codes

        def view(name: str, x: Any) -> View:  # a closure: a call looks at a dozen tensors
            try:
                if x.is_cuda or x.is_cpu:
                    return x.data_ptr(), x.shape, x.stride(), codes[x.dtype], x.get_device(), None
            except KeyError:
                return x.data_ptr(), x.shape, x.stride(), str(x.dtype).replace("torch.", ""), x.get_device(), None
            except (AttributeError, TypeError, RuntimeError) as error:
                self._refuse_view(name, x, error)
            raise InvalidError(f"{name}: found on {x.device}, allowed cpu, cuda")

        self.view = view  # type: ignore[method-assign]
        raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        if raw is not None:
            self.stream = raw  # type: ignore[method-assign]

    def _refuse_view(self, name: str, x: Any, error: Exception) -> NoReturn:
        if not isinstance(x, self._torch.Tensor):
            _refuse_kind(name, x, "torch.Tensor, as q")
        why = error if x.layout is self._torch.strided else x.layout
        _refuse_kind(name, x, "a tensor with memory and strides", why)

    def refuse_gradients(self, arrays: Iterable[tuple[str, Any]]) -> None:
        if not self._torch.is_grad_enabled():
            return
        for name, x in arrays:
            if getattr(x, "requires_grad", False):
                refuse_gradient(name)

    def empty_like(self, x: Any, shape: tuple[int, ...], f32: bool = False) -> Any:
        return x.new_empty(shape, dtype=self._torch.float32 if f32 else x.dtype)

    def workspace(self, x: Any, device: int, num_bytes: int, stream: int) -> tuple[int, Any]:
        # From torch's caching allocator, which hands it on in the order of the stream.
        memory = x.new_empty(num_bytes, dtype=self._torch.uint8)
        return memory.data_ptr(), memory

    def stream(self, device: int) -> int:
        return int(self._torch.cuda.current_stream(device).cuda_stream)


# ---- numpy -----------------------------------------------------------------------------------


class _Numpy(Framework):
    def __init__(self) -> None:
        super().__init__("numpy")
        import numpy

        self._ndarray = numpy.ndarray

    def view(self, name: str, x: Any) -> View:
        if not isinstance(x, self._ndarray):
            _refuse_kind(name, x, "numpy.ndarray, as q")
        size = x.itemsize
        if not x.flags.aligned and any(s % size for s in x.strides):  # a field of packed records
            raise InvalidError(f"{name}: found strides of {list(x.strides)} bytes, allowed multiples of {size}")
        return (
            x.__array_interface__["data"][0],
            x.shape,
            tuple(s // size for s in x.strides) if x.size else _packed(x.shape),  # empty: numpy has them 0
            _code_of(x.dtype),
            -1,
            x,
        )

    def written(self, name: str, x: Any) -> View:
        view = self.view(name, x)
        if not x.flags.writeable:
            _refuse_read_only(name, x)
        return view

    def empty_like(self, x: Any, shape: tuple[int, ...], f32: bool = False) -> Any:
        import numpy

        return numpy.empty(shape, dtype=numpy.float32 if f32 else x.dtype)


# ---- CuPy ------------------------------------------------------------------------------------


class _Cupy(Framework):
    def view(self, name: str, x: Any) -> View:
        try:
            size = x.itemsize
            return (
                x.data.ptr,
                x.shape,
                tuple(s // size for s in x.strides),
                _code_of(x.dtype),
                x.device.id,
                x,
            )
        except AttributeError:
            _refuse_kind(name, x, "cupy.ndarray, as q")

    def empty_like(self, x: Any, shape: tuple[int, ...], f32: bool = False) -> Any:
        import cupy

        with cupy.cuda.Device(x.device.id):
            return cupy.empty(shape, dtype="float32" if f32 else x.dtype)

    def workspace(self, x: Any, device: int, num_bytes: int, stream: int) -> tuple[int, Any]:
        import cupy

        with cupy.cuda.Device(device):
            memory = cupy.empty(num_bytes, dtype="uint8")
        return memory.data.ptr, memory

    def stream(self, device: int) -> int:
        import cupy

        return int(cupy.cuda.get_current_stream().ptr)


# ---- everything else, by DLPack ----------------------------------------------------------------


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _DLManagedTensorVersioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _DLTensor),
    ]


_VERSIONED = b"dltensor_versioned"
_DL_READ_ONLY = 1  # DLPACK_FLAG_BITMASK_READ_ONLY

# Numbers of dlpack.h: devices kDLCPU, kDLCUDA, kDLCUDAHost, kDLCUDAManaged; types (code, bits).
_DL_CPU, _DL_CUDA, _DL_CUDA_HOST, _DL_CUDA_MANAGED = 1, 2, 3, 13
_DL_TYPES = {(2, 32): F32, (2, 16): F16, (4, 16): BF16, (10, 8): E4M3, (12, 8): E5M2, (0, 32): I32,
             (0, 64): I64, (6, 8): BOOL, (1, 8): U8}  # fmt: skip

_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_capsule_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_capsule_is_valid.restype, _capsule_is_valid.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]


def _packed(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.insert(0, step)
        step *= extent
    return tuple(strides)


def _capsule_of(name: str, x: Any, on_gpu: bool) -> Any:
    # 1 is DLPack's name for the default stream, on which these calls run: the producer lets it
    # wait for what it has still under way.
    ask = {"stream": 1} if on_gpu else {}
    try:
        try:
            return x.__dlpack__(max_version=(1, 0), **ask)
        except TypeError:  # a producer from before DLPack had versions
            return x.__dlpack__(**ask)
    except Exception as error:
        _refuse_kind(name, x, "an array that DLPack can hand over", error)


def _says_read_only(x: Any) -> bool:
    """By NumPy's or CUDA's array interface, for producers whose DLPack cannot say it."""
    for interface in ("__array_interface__", "__cuda_array_interface__"):
        found = getattr(x, interface, None)
        data = found.get("data") if isinstance(found, dict) else None
        if isinstance(data, tuple) and data[1]:
            return True
    return False


def _is_of_jax(x: Any) -> bool:
    return type(x).__module__.split(".")[0] in ("jax", "jaxlib")


class _Dlpack(Framework):
    def view(self, name: str, x: Any) -> View:
        return self._looked_into(name, x)[0]

    def written(self, name: str, x: Any) -> View:
        if _is_of_jax(x):
            raise InvalidError(f"{name}: found a JAX array, which is immutable, allowed None, or an array of another's")
        view, read_only = self._looked_into(name, x)
        if read_only or _says_read_only(x):
            _refuse_read_only(name, x)
        return view

    @staticmethod
    def _looked_into(name: str, x: Any) -> tuple[View, bool]:
        """The view, and whether the producer calls it read-only."""
        if not hasattr(x, "__dlpack__") or not hasattr(x, "__dlpack_device__"):
            _refuse_kind(name, x, "an array (torch, numpy, CuPy, DLPack)")
        device_type, device_id = x.__dlpack_device__()
        on_gpu = int(device_type) in (_DL_CUDA, _DL_CUDA_MANAGED)
        if not on_gpu and int(device_type) not in (_DL_CPU, _DL_CUDA_HOST):
            raise UnsupportedError(f"{name}: found DLPack device {int(device_type)}, allowed the CPU, CUDA")
        capsule = _capsule_of(name, x, on_gpu)
        # The capsule is looked into, not consumed: it frees its memory when keep goes.
        read_only = False
        if _capsule_is_valid(capsule, _VERSIONED):
            managed = _DLManagedTensorVersioned.from_address(_capsule_pointer(capsule, _VERSIONED))
            if managed.major != 1:
                raise UnsupportedError(f"{name}: found DLPack of version {managed.major}, allowed 1")
            tensor, read_only = managed.tensor, bool(managed.flags & _DL_READ_ONLY)
        else:
            tensor = _DLTensor.from_address(_capsule_pointer(capsule, b"dltensor"))
        code: Optional[Type] = _DL_TYPES.get((tensor.code, tensor.bits))
        if code is None or tensor.lanes != 1:
            code = f"DLPack's {tensor.code} of {tensor.bits} bits"
        shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
        strides = tuple(tensor.strides[i] for i in range(tensor.ndim)) if tensor.strides else _packed(shape)
        address = (tensor.data or 0) + tensor.byte_offset
        return (address, shape, strides, code, int(device_id) if on_gpu else -1, capsule), read_only

    def empty_like(self, x: Any, shape: tuple[int, ...], f32: bool = False) -> Any:
        if not _is_of_jax(x):
            raise InvalidError(
                f"out: found None, allowed an array to write to (arrays of {type(x).__module__} cannot be made here)"
            )
        import jax.numpy
        import numpy

        dtype = numpy.float32 if f32 else x.dtype
        if int(x.__dlpack_device__()[0]) in (_DL_CPU, _DL_CUDA_HOST):
            return numpy.empty(shape, dtype=dtype)  # JAX's arrays are not to be written; finish makes one
        import jax

        return jax.device_put(jax.numpy.zeros(shape, dtype=dtype), x.device).block_until_ready()

    def finish(self, x: Any, device: int, stream: int) -> Any:
        if type(x).__module__ == "numpy":
            import jax.numpy

            return jax.numpy.asarray(x)
        synchronize(device, stream)  # JAX orders its own streams only
        return x


# ---- the driver, for frameworks whose allocator cannot be asked ----------------------------------

_buffers: dict[tuple[int, int], tuple[int, int]] = {}
_buffers_lock = threading.Lock()


class _Driver:
    def __init__(self, device: int) -> None:
        try:
            self.cuda = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise UnsupportedError(f"device: found no NVIDIA driver ({error}), allowed the CPU") from None
        self.device = device

    def __enter__(self) -> Any:
        handle, context = ctypes.c_int(), ctypes.c_void_p()
        self._ok(self.cuda.cuInit(0), "cuInit")
        self._ok(self.cuda.cuDeviceGet(ctypes.byref(handle), self.device), "cuDeviceGet")
        self._ok(self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle), "cuDevicePrimaryCtxRetain")
        self._ok(self.cuda.cuCtxPushCurrent_v2(context), "cuCtxPushCurrent")
        return self

    def __exit__(self, *_: object) -> None:
        popped = ctypes.c_void_p()
        self.cuda.cuCtxPopCurrent_v2(ctypes.byref(popped))

    @staticmethod
    def _ok(result: int, what: str) -> None:
        if result:
            raise UnsupportedError(f"{what}: the driver answered {result}")

    def alloc(self, num_bytes: int) -> int:
        address = ctypes.c_uint64()
        self._ok(self.cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(num_bytes)), "cuMemAlloc")
        return address.value

    def free(self, address: int) -> None:
        self.cuda.cuMemFree_v2(ctypes.c_uint64(address))

    def synchronize(self, stream: int) -> None:
        self._ok(self.cuda.cuStreamSynchronize(ctypes.c_void_p(stream)), "cuStreamSynchronize")


def _grown(device: int, stream: int, num_bytes: int) -> int:
    """One buffer a stream, which grows: work on a stream is in order, so calls may share it."""
    with _buffers_lock:
        address, size = _buffers.get((device, stream), (0, 0))
        if size < num_bytes:
            with _Driver(device) as driver:
                fresh = driver.alloc(num_bytes)
                if address:
                    driver.synchronize(stream)
                    driver.free(address)
            address = fresh
            _buffers[device, stream] = (fresh, num_bytes)
        return address


def synchronize(device: int, stream: int) -> None:
    with _Driver(device) as driver:
        driver.synchronize(stream)


# ---- which one -----------------------------------------------------------------------------------

_by_type: dict[type, Framework] = {}
_made: dict[str, Framework] = {}
_makers: dict[str, Callable[[], Framework]] = {
    "torch": _Torch,
    "numpy": _Numpy,
    "cupy": lambda: _Cupy("cupy"),
    "dlpack": lambda: _Dlpack("dlpack"),
}


def _kind_of(x: Any) -> str:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return "torch"
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(x, numpy.ndarray):
        return "numpy"
    if type(x).__module__.split(".")[0] == "cupy":
        return "cupy"
    return "dlpack"


def framework_of(x: Any) -> Framework:
    found = _by_type.get(type(x))
    if found is None:
        kind = _kind_of(x)
        found = _made.get(kind)
        if found is None:
            found = _made.setdefault(kind, _makers[kind]())
        _by_type[type(x)] = found
    return found
