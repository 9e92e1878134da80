"""extattn through its shared library."""

import ctypes
import importlib.util
import os
from pathlib import Path

import torch

from peer.calls import Unsupported

DTYPES = {"f32": 1, "f16": 2, "bf16": 3}  # ea_dtype


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("token_stride", ctypes.c_int64), ("head_stride", ctypes.c_int64)]


class Cache(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("page_stride", ctypes.c_int64),
        ("row_stride", ctypes.c_int64),
        ("head_stride", ctypes.c_int64),
    ]


class Batch(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("num_seqs", ctypes.c_int64),
        ("num_tokens", ctypes.c_int64),
        ("num_kv_indices", ctypes.c_int64),
        ("num_pages", ctypes.c_int64),
        ("q", Tensor),
        ("k", Tensor),
        ("v", Tensor),
        ("k_cache", Cache),
        ("v_cache", Cache),
        ("out", Tensor),
        ("lse", ctypes.c_void_p),
        ("lse_token_stride", ctypes.c_int64),
        ("lse_head_stride", ctypes.c_int64),
        ("qo_indptr", ctypes.c_void_p),
        ("kv_indptr", ctypes.c_void_p),
        ("kv_indices", ctypes.c_void_p),
        ("custom_mask", ctypes.c_void_p),
        ("custom_mask_bytes", ctypes.c_int64),
        ("mask_indptr", ctypes.c_void_p),
        ("window_kv_offsets", ctypes.c_void_p),
        ("sinks", ctypes.c_void_p),
        ("qo_indptr_host", ctypes.c_void_p),
        ("kv_indptr_host", ctypes.c_void_p),
    ]


def bindings(path):
    """A copy of the Python package's structs and signatures for this library alone: there may be two builds of it."""
    os.environ["EXTATTN_LIBRARY"] = str(path)
    source = Path(__file__).resolve().parents[2] / "python/extattn/_library.py"
    spec = importlib.util.spec_from_file_location(f"extattn_library_of_{len(LOADED)}", source)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    LOADED.append(module)
    return module


LOADED = []


class Extattn:
    """The shared library, and one context of it."""

    def __init__(self, path, device, threads, family="auto"):
        self.c = bindings(path)
        self.lib, self.family = self.c.lib, self.c.FAMILIES[family]
        self.version = self.c.version()
        device = self.c.DEVICE_CUDA if device == "cuda" else self.c.DEVICE_CPU
        options = self.c.ContextOptions(ctypes.sizeof(self.c.ContextOptions), device, 0, threads, 0)
        self.context = ctypes.c_void_p()
        self.check(self.lib.ea_context_create(ctypes.byref(options), ctypes.byref(self.context)))

    def check(self, status):
        try:
            self.c.check(status)
        except (self.c.UnsupportedError, self.c.DoesNotFitError) as error:
            raise Unsupported(str(error)) from None

    def device_info(self):
        info = self.c.DeviceInfo(struct_size=ctypes.sizeof(self.c.DeviceInfo))
        self.check(self.lib.ea_context_info(self.context, ctypes.byref(info)))
        return info

    def prepare(self, case, sets, stages):
        problem = self.c.Problem(
            struct_size=ctypes.sizeof(self.c.Problem), dtype=DTYPES[case.dtype], index_dtype=self.c.I32,
            mask_indptr_dtype=self.c.I64, sinks_dtype=self.c.F32, num_q_heads=case.num_q_heads,
            num_kv_heads=case.num_kv_heads, head_dim=case.head_dim, head_dim_v=case.head_dim_v, page_size=1,
            shared_kv=case.shared_kv, causal=True, skip_prefix_custom_mask=True, window_left=case.window or -1,
            k_scale=1.0, v_scale=1.0,
        )  # fmt: skip
        options = self.c.PlanOptions(ctypes.sizeof(self.c.PlanOptions), self.family, stages)
        plan = ctypes.c_void_p()
        status = self.lib.ea_plan_create(self.context, ctypes.byref(problem), ctypes.byref(options), ctypes.byref(plan))
        self.check(status)
        return OurPlan(self, plan, case, sets)


class OurPlan:
    def __init__(self, ours, plan, case, sets):
        self.ours, self.plan = ours, plan
        self.info = ours.c.PlanInfo(struct_size=ctypes.sizeof(ours.c.PlanInfo))
        ours.check(ours.lib.ea_plan_get_info(plan, ctypes.byref(self.info)))
        self.outs = [torch.empty(s.q.shape[0], s.q.shape[1], case.head_dim_v, dtype=s.q.dtype, device=s.q.device)
                     for s in sets]  # fmt: skip
        self.batches = [self.batch_of(case, s, out) for s, out in zip(sets, self.outs)]
        needed = ctypes.c_size_t()
        ours.check(ours.lib.ea_workspace_size(plan, ctypes.byref(self.batches[0]), ctypes.byref(needed)))
        # torch aligns to 64 bytes on a CPU and to 512 on a GPU; the library asks for 256.
        self.memory = torch.empty(needed.value + 256, dtype=torch.uint8, device=sets[0].q.device)
        self.workspace = (self.memory.data_ptr() + 255) // 256 * 256
        self.workspace_bytes = needed

    @staticmethod
    def batch_of(case, s, out):
        def tensor(t):
            return Tensor(t.data_ptr(), t.stride(0), t.stride(1))

        def cache(t):
            return Cache(t.data_ptr(), t.stride(0), 0, t.stride(1))

        gpu = s.q.is_cuda
        return Batch(
            struct_size=ctypes.sizeof(Batch), num_seqs=case.seqs, num_tokens=s.q.shape[0],
            num_kv_indices=s.slots.numel(), num_pages=s.k_pool.shape[0], q=tensor(s.q), k=tensor(s.k), v=tensor(s.v),
            k_cache=cache(s.k_pool), v_cache=cache(s.v_pool), out=tensor(out), qo_indptr=s.qo_indptr.data_ptr(),
            kv_indptr=s.kv_indptr.data_ptr(), kv_indices=s.slots.data_ptr(),
            qo_indptr_host=s.qo_indptr_host.data_ptr() if gpu else None,
            kv_indptr_host=s.kv_indptr_host.data_ptr() if gpu else None,
        )  # fmt: skip

    def run(self, i):
        gpu = self.memory.is_cuda
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream) if gpu else None
        batch = self.batches[i % len(self.batches)]
        workspace = ctypes.c_void_p(self.workspace)
        self.ours.check(self.ours.lib.ea_run(self.plan, ctypes.byref(batch), workspace, self.workspace_bytes, stream))

    def result(self):
        return self.outs[0]

    def details(self):
        info = self.info
        return {"kernel": info.kernel.decode(), "stages": info.stages, "tile_m": info.tile_m, "tile_n": info.tile_n,
                "smem_bytes": info.smem_bytes, "registers": info.registers}  # fmt: skip

    def close(self):
        self.ours.lib.ea_plan_destroy(self.plan)
