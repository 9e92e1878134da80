"""SGLang's extend_attention, in Triton, out of its wheel."""

import importlib
import inspect
import sys
import tempfile
import types
import zipfile
from pathlib import Path

import torch

from peer.calls import Calls, Unsupported


def sglang_modules(source):
    """SGLang's module extend_attention, without the rest of SGLang.

    Its own imports within the folder of kernels are served from there; what it asks of SGLang's
    runtime (is this CUDA? which environment options are set?) is answered by stand-ins.
    """
    root = Path(source)
    if root.is_file():
        unpacked = Path(tempfile.mkdtemp(prefix="sglang-"))
        with zipfile.ZipFile(root) as wheel:
            wanted = [n for n in wheel.namelist()
                      if (n.endswith(".py") and ("/ops/attention/" in n or "/attention/triton_ops/" in n))
                      or n.endswith("/METADATA")]  # fmt: skip
            wheel.extractall(unpacked, wanted)
        root = unpacked
    files = [f for f in sorted(root.rglob("extend_attention.py")) if not {"wave_ops", "test"} & set(f.parts)]
    if not files:
        raise Unsupported(f"no extend_attention.py in {source}")
    folder = files[0].parent
    parts = folder.relative_to(next(p for p in folder.parents if p.name == "sglang")).parts

    def package(name, path):
        module = types.ModuleType(name)
        module.__path__ = [str(path)] if path else []
        sys.modules[name] = module
        return module

    top = folder
    for _ in parts:
        top = top.parent
    package("sglang", top)
    path = top
    for i, part in enumerate(parts):
        path = path / part
        package(".".join(("sglang", *parts[: i + 1])), path)
    if "sglang.srt" not in sys.modules:
        package("sglang.srt", None)

    class Unset:
        def get(self):
            return False

    class Environment:
        def __getattr__(self, name):
            return Unset()

    environ = package("sglang.srt.environ", None)
    environ.envs = Environment()
    utils = package("sglang.srt.utils", None)
    utils.is_cuda = lambda: True
    utils.get_device_core_count = lambda *_: torch.cuda.get_device_properties(0).multi_processor_count

    # What else it may ask (is_hip, is_gfx95_supported, ...) is about other makers' chips. Not what Python asks of
    # every module (__file__, ...).
    def about_others(name):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_: False

    utils.__getattr__ = about_others
    module = importlib.import_module(".".join(("sglang", *parts, "extend_attention")))
    metadata = list(root.glob("*.dist-info/METADATA"))
    lines = metadata[0].read_text().splitlines() if metadata else []
    version = next((line.split()[1] for line in lines if line.startswith("Version:")), "unknown")
    return module, version


class AtDepth:
    """Stands in for a Triton kernel: the same launches, with another num_stages."""

    def __init__(self, kernel, stages):
        self.kernel, self.stages = kernel, stages

    def __getitem__(self, grid):
        launch = self.kernel[grid]
        return lambda *args, **kwargs: launch(*args, **(kwargs | {"num_stages": self.stages}))


def triton_peer(module, stages, case, sets):
    kernel = module._fwd_kernel if not isinstance(module._fwd_kernel, AtDepth) else module._fwd_kernel.kernel
    known = inspect.signature(module.extend_attention_fwd).parameters

    def call(s):
        out = torch.empty(s.q.shape[0], s.q.shape[1], case.head_dim_v, dtype=s.q.dtype, device=s.q.device)
        # 64-bit slots, as SGLang's own pool hands out: its kernel multiplies them by the row stride.
        slots = s.slots.to(torch.int64)
        arguments = {
            "q_extend": s.q, "k_extend": s.k, "v_extend": s.v, "o_extend": out, "k_buffer": s.k_pool,
            "v_buffer": s.v_pool, "qo_indptr": s.qo_indptr, "kv_indptr": s.kv_indptr, "kv_indices": slots,
            "custom_mask": None, "is_causal": True, "mask_indptr": None, "max_len_extend": case.extend,
            "k_scale": 1.0, "v_scale": 1.0, "sliding_window_size": case.window or -1,
        }  # fmt: skip
        arguments = {name: value for name, value in arguments.items() if name in known}

        def run():
            module._fwd_kernel = AtDepth(kernel, stages)
            module.extend_attention_fwd(**arguments)
            return out

        return run

    calls = Calls([call(s) for s in sets], lambda out: out)
    try:
        calls.run(0)
    except Exception as error:  # triton's OutOfResources has moved between modules
        if "out of resource" in str(error):
            raise Unsupported(str(error)) from error
        raise
    return calls
