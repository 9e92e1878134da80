"""Arrays of any framework as what the library wants to know of them.

A view is the tuple (address, shape, strides in elements, type, device, keep): device is -1 for the
CPU and the GPU's ordinal otherwise; keep is what has to stay alive as long as the view is used.
torch tensors take a short way; numpy and CuPy arrays say all of it themselves; everything else
(JAX among them) comes in through DLPack.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from typing import Any, Callable, Optional

from extattn._library import BF16, BOOL, E4M3, E5M2, F16, F32, I32, I64, U8, InvalidError, UnsupportedError
from extattn._look import Look

View = tuple[int, Any, Any, int, int, Any]

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


def _code_of(name: str, dtype: Any) -> int:
    code = _numpy_codes.get(dtype)
    if code is None:
        code = _NAMES.get(str(dtype))
        if code is None:
            raise InvalidError(f"{name}: found type {dtype}, allowed {', '.join(_NAMES)}")
        _numpy_codes[dtype] = code
    return code


class Framework:
    """How arrays of one framework are looked at and made."""

    look: Optional[Look] = None  # the short way of a call

    def __init__(self, name: str) -> None:
        self.name = name

    def view(self, name: str, x: Any) -> View:
        raise NotImplementedError

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
        self.look = Look(torch.Tensor)
        self.codes: dict[Any, int] = {}
        for attribute, code in _NAMES.items():
            if hasattr(torch, attribute):
                self.codes[getattr(torch, attribute)] = code
        codes = self.codes

        def view(name: str, x: Any) -> View:  # a closure: a call looks at a dozen tensors
            try:
                return x.data_ptr(), x.shape, x.stride(), codes[x.dtype], x.get_device(), None
            except KeyError:
                raise InvalidError(f"{name}: found type {x.dtype}, allowed {', '.join(_NAMES)}") from None

        self.view = view  # type: ignore[method-assign]
        raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        if raw is not None:
            self.stream = raw  # type: ignore[method-assign]

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
    def view(self, name: str, x: Any) -> View:
        size = x.itemsize
        return (
            x.__array_interface__["data"][0],
            x.shape,
            tuple(s // size for s in x.strides) if x.size else _packed(x.shape),  # empty: numpy has them 0
            _code_of(name, x.dtype),
            -1,
            x,
        )

    def empty_like(self, x: Any, shape: tuple[int, ...], f32: bool = False) -> Any:
        import numpy

        return numpy.empty(shape, dtype=numpy.float32 if f32 else x.dtype)


# ---- CuPy ------------------------------------------------------------------------------------


class _Cupy(Framework):
    def view(self, name: str, x: Any) -> View:
        size = x.itemsize
        return (
            x.data.ptr,
            x.shape,
            tuple(s // size for s in x.strides),
            _code_of(name, x.dtype),
            x.device.id,
            x,
        )

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


# Numbers of dlpack.h: devices kDLCPU, kDLCUDA, kDLCUDAHost, kDLCUDAManaged; types (code, bits).
_DL_CPU, _DL_CUDA, _DL_CUDA_HOST, _DL_CUDA_MANAGED = 1, 2, 3, 13
_DL_TYPES = {(2, 32): F32, (2, 16): F16, (4, 16): BF16, (10, 8): E4M3, (12, 8): E5M2, (0, 32): I32,
             (0, 64): I64, (6, 8): BOOL, (1, 8): U8}  # fmt: skip

_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def _packed(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.insert(0, step)
        step *= extent
    return tuple(strides)


class _Dlpack(Framework):
    def view(self, name: str, x: Any) -> View:
        if not hasattr(x, "__dlpack__"):
            raise InvalidError(f"{name}: found {type(x).__name__}, allowed an array (torch, numpy, CuPy, DLPack)")
        device_type, device_id = x.__dlpack_device__()
        on_gpu = int(device_type) in (_DL_CUDA, _DL_CUDA_MANAGED)
        if not on_gpu and int(device_type) not in (_DL_CPU, _DL_CUDA_HOST):
            raise UnsupportedError(f"{name}: found DLPack device {int(device_type)}, allowed the CPU, CUDA")
        # 1 is DLPack's name for the default stream, on which these calls run: the producer lets it
        # wait for what it has still under way.
        capsule = x.__dlpack__(stream=1) if on_gpu else x.__dlpack__()
        # The capsule is looked into, not consumed: it frees its memory when keep goes.
        tensor = ctypes.cast(_capsule_pointer(capsule, b"dltensor"), ctypes.POINTER(_DLTensor)).contents
        code = _DL_TYPES.get((tensor.code, tensor.bits))
        if code is None or tensor.lanes != 1:
            raise InvalidError(
                f"{name}: found DLPack type {tensor.code} of {tensor.bits} bits, allowed {', '.join(_NAMES)}"
            )
        shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
        strides = tuple(tensor.strides[i] for i in range(tensor.ndim)) if tensor.strides else _packed(shape)
        address = (tensor.data or 0) + tensor.byte_offset
        return address, shape, strides, code, int(device_id) if on_gpu else -1, capsule

    def empty_like(self, x: Any, shape: tuple[int, ...], f32: bool = False) -> Any:
        if not type(x).__module__.startswith("jax"):
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
    "numpy": lambda: _Numpy("numpy"),
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
