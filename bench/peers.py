#!/usr/bin/env python3
"""Measures extattn next to other attention kernels: one process, the same tensors.

    bench/peers.py --library build/libextattn.so --command build/extattn \\
        --sglang sglang-0.5.18-*.whl --suite seed --commit HASH --json seed.json

Peers, each left out with a reason where it is not installed or cannot do a shape:

    triton1, triton2, triton3   SGLang's extend_attention at pipeline depths 1, 2 and 3. Taken from
                                SGLang's wheel (or a folder with its files); only num_stages is set
    cudnn, fa2                  one sequence: torch's scaled_dot_product_attention with that backend;
                                several: torch's operators for packed sequences, or nested tensors
    fa3                         FlashAttention-3 (the package fa3-fwd, or flash_attn_interface)
    fa3_vllm                    FlashAttention-3 as vLLM builds it, with pages, split keys, windows and
                                latent attention: one shared object of vLLM's wheel (--vllm-fa3). A prefix
                                comes in pages of one token; where its slots are in order, fa3_vllm_16 and
                                fa3_vllm_64 have it in pages of so many
    flashinfer                  FlashInfer's batch prefill

Every peer's output is compared with ours. The peers take turns: in each of --rounds every one has
--warm-up runs and then --repeats runs that count. Before each turn the GPU rests for --pause seconds:
work near its power limit slows it down within tenths of a second (an H200 at head dimension 256 from
5.1 ms to 6.0, ours and FlashAttention-3 alike), so that otherwise a peer's time depends on who had the
turn before it, and a slow one is a rest for the next. Times are medians of the runs of all rounds,
by CUDA events, over rotating copies of the tensors so that no run finds its input in the L2 cache.
Times are to be the GPU's, not the host's: the GPU is kept busy while runs are enqueued, and captured graphs
are replayed where a batch is ragged (ours too), where a call takes the host more than a millisecond, and where
the median is more than 1.5 times the minimum. The record says so ("graph": true), or why not ("no: ...");
scripts/bench_table.py leaves out what stays so wide.
The shapes come from `extattn bench SUITE --list`. The record is written after each case.

On a CPU (--device cpu) the peers are torch: its attention where it does the shape, and a sequence
at a time, which does all of them. --shrink makes any suite small enough for that.
"""

import argparse
import contextlib
import ctypes
import dataclasses
import datetime
import functools
import hashlib
import importlib
import importlib.metadata
import inspect
import itertools
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import types
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

ROTATION_BYTES = 512 << 20
MAX_COPIES = 8
MAX_DIFFERENCE = 1e-2  # relative Frobenius norm between two bf16 results; each is some 2.3e-3 from float64
DEPTHS = (1, 2, 3, 0)  # 0: automatic
HOST_BOUND_MS = 1.0  # a call that takes the host longer is captured
WIDE = 1.5  # so is one whose median is so many times its minimum: a kernel's own times differ by a fifth at most
SLEEP_CYCLES_A_MS = 2_000_000  # of torch.cuda._sleep: a GPU's clock is at most some 2 GHz
MAX_SLEEP_MS = 5000


class Unsupported(Exception):
    """A peer cannot do a shape, or is not here; the text says why."""


# ---- extattn through its shared library --------------------------------------------------------


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


DTYPES = {"f32": (1, torch.float32), "f16": (2, torch.float16), "bf16": (3, torch.bfloat16)}


class Extattn:
    """The shared library, and one context of it. Structs and signatures are those of the Python package."""

    def __init__(self, path, device, threads, family="auto"):
        os.environ["EXTATTN_LIBRARY"] = str(path)
        sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "python"))
        self.c = importlib.import_module("extattn._library")
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
            struct_size=ctypes.sizeof(self.c.Problem), dtype=DTYPES[case.dtype][0], index_dtype=self.c.I32,
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


# ---- cases -------------------------------------------------------------------------------------


@dataclasses.dataclass
class Case:
    dtype: str
    head_dim: int
    head_dim_v: int
    num_q_heads: int
    num_kv_heads: int
    window: int  # 0: none
    seqs: int
    prefix: int
    extend: int  # the longest
    ragged: bool
    shared_kv: bool
    slots: str  # "shuffled" or "ordered"
    flop: float
    bytes: float
    extends: list  # new tokens, sequence by sequence

    def name(self):
        window = f", window {self.window}" if self.window else ""
        slots = ", ordered" if self.slots == "ordered" else ""
        extend = f"1 to {self.extend}" if self.ragged else f"{self.extend}"
        return (f"{self.dtype} {self.head_dim}/{self.head_dim_v}, {self.num_q_heads}/{self.num_kv_heads}, "
                f"{self.seqs} x ({self.prefix} + {extend}){window}{slots}")  # fmt: skip

    def shortened(self):
        """The same kernels, next to no work."""
        extends = [min(extend, 256) for extend in self.extends]
        return dataclasses.replace(self, prefix=min(self.prefix, 64), extend=max(extends), extends=extends)

    def record(self):
        """What is written down: the lengths follow from the rule in cli/bench.h."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name != "extends"}


@dataclasses.dataclass
class Tensors:
    """One copy of a batch: new tokens packed, the prefix in slots of a pool."""

    q: torch.Tensor  # [T, Hq, D]
    k: torch.Tensor
    v: torch.Tensor
    k_pool: torch.Tensor  # [slots, Hkv, D]
    v_pool: torch.Tensor
    slots: torch.Tensor  # i32
    qo_indptr: torch.Tensor
    kv_indptr: torch.Tensor
    qo_indptr_host: torch.Tensor
    kv_indptr_host: torch.Tensor


def make_tensors(case, device, seed):
    generator = torch.Generator(device=device).manual_seed(seed)
    dtype = DTYPES[case.dtype][1]

    def normal(tokens, heads, dim):
        t = torch.empty(tokens, heads, dim, dtype=dtype, device=device)
        return t.normal_(generator=generator)

    tokens, slots = sum(case.extends), case.seqs * case.prefix
    q = normal(tokens, case.num_q_heads, case.head_dim)
    k = normal(tokens, case.num_kv_heads, case.head_dim)
    k_pool = normal(max(slots, 1), case.num_kv_heads, case.head_dim)
    if case.shared_kv:
        v, v_pool = k[..., : case.head_dim_v], k_pool[..., : case.head_dim_v]
    else:
        v = normal(tokens, case.num_kv_heads, case.head_dim_v)
        v_pool = normal(max(slots, 1), case.num_kv_heads, case.head_dim_v)
    if case.slots == "ordered":
        order = torch.arange(slots, dtype=torch.int32, device=device)
    else:
        order = torch.randperm(slots, generator=generator, device=device).to(torch.int32)
    qo = torch.tensor([0, *itertools.accumulate(case.extends)], dtype=torch.int32)
    kv = torch.arange(case.seqs + 1, dtype=torch.int32) * case.prefix
    return Tensors(q, k, v, k_pool, v_pool, order, qo.to(device), kv.to(device), qo, kv)


def make_sets(case, device):
    copies = min(max(math.ceil(ROTATION_BYTES / case.bytes), 1), MAX_COPIES)
    return [make_tensors(case, device, seed) for seed in range(copies)]


# ---- peers -------------------------------------------------------------------------------------
#
# A peer is prepare(case, sets) -> an object with run(i) and result(), the output of set 0 as
# [T, Hq, Dv]; it raises Unsupported.


class Calls:
    """Closures, one a set; each returns its output."""

    def __init__(self, calls, shape, way=""):
        self.calls, self.shape, self.out, self.way = calls, shape, None, way
        self.no_graph = ""  # why it must not be captured

    def run(self, i):
        out = self.calls[i % len(self.calls)]()
        if i % len(self.calls) == 0:
            self.out = out

    def result(self):
        return self.shape(self.out)

    def details(self):
        return {"way": self.way} if self.way else {}

    def close(self):
        self.calls, self.out = [], None


def one_line(error):
    return f"{error}".strip().split("\n")[0] or type(error).__name__


def first_that_runs(ways):
    """The first of the ways to call a peer that gets through; ways: name to a function that makes its Calls."""
    reasons = []
    for name, make in ways.items():
        try:
            calls = make()
            calls.way = name
            calls.run(0)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            return calls
        except Exception as error:  # another library's: anything may come out of it
            reasons.append(f"{name}: {one_line(error)}")
    raise Unsupported("; ".join(reasons))


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


def repeated_heads(case, s):
    """K and V with a head for each query head, for what knows no groups."""
    groups = case.num_q_heads // case.num_kv_heads
    return s.k.repeat_interleave(groups, dim=1), s.v.repeat_interleave(groups, dim=1)


def sdpa_dense(backend, case, sets, repeated):
    """One sequence."""
    from torch.nn.attention import sdpa_kernel

    attention = torch.nn.functional.scaled_dot_product_attention
    options = {"is_causal": True}
    if not repeated:
        options["enable_gqa"] = case.num_q_heads > case.num_kv_heads

    def call(s):
        keys = repeated_heads(case, s) if repeated else (s.k, s.v)
        q, k, v = (t.transpose(0, 1).unsqueeze(0) for t in (s.q, *keys))

        def run():
            with sdpa_kernel(backend) if backend else contextlib.nullcontext():
                return attention(q, k, v, **options)

        return run

    return Calls([call(s) for s in sets], lambda out: out[0].transpose(0, 1))


def sdpa_nested(backend, case, sets):
    """Several sequences as one nested tensor, which torch gives no groups of heads."""
    from torch.nn.attention import sdpa_kernel

    attention = torch.nn.functional.scaled_dot_product_attention

    def call(s):
        offsets, ends = s.qo_indptr.to(torch.int64), {"min_seqlen": min(case.extends), "max_seqlen": max(case.extends)}
        q, k, v = (torch.nested.nested_tensor_from_jagged(t, offsets, **ends).transpose(1, 2)
                   for t in (s.q, *repeated_heads(case, s)))  # fmt: skip

        def run():
            with sdpa_kernel(backend):
                return attention(q, k, v, is_causal=True)

        return run

    return Calls([call(s) for s in sets], lambda out: out.transpose(1, 2).values())


def cudnn_packed(case, sets, repeated):
    """torch's operator on packed sequences."""
    longest = max(case.extends)

    def call(s):
        k, v = repeated_heads(case, s) if repeated else (s.k, s.v)
        # No bias; no logsumexp, dropout 0, causal, no debug mask.
        arguments = (s.q, k, v, None, s.qo_indptr, s.qo_indptr, longest, longest, False, 0.0, True, False)
        return lambda: torch.ops.aten._cudnn_attention_forward(*arguments)[0]

    return Calls([call(s) for s in sets], lambda out: out)


def fa2_packed(case, sets):
    """torch's operator on packed sequences."""
    longest = max(case.extends)

    def call(s):
        # Dropout 0, causal, no debug mask.
        arguments = (s.q, s.k, s.v, s.qo_indptr, s.qo_indptr, longest, longest, 0.0, True, False)
        return lambda: torch.ops.aten._flash_attention_forward(*arguments)[0]

    return Calls([call(s) for s in sets], lambda out: out)


def fa2_varlen(case, sets):
    """The same through torch's public function, which checks more and is newer."""
    varlen = importlib.import_module("torch.nn.attention.varlen")
    longest = max(case.extends)

    def call(s):
        arguments = (s.q, s.k, s.v, s.qo_indptr, s.qo_indptr, longest, longest)
        return lambda: varlen.varlen_attn(*arguments, window_size=(-1, 0))

    return Calls([call(s) for s in sets], lambda out: out)


def sdpa_peer(backend, packed, case, sets):
    """packed: ways to run several sequences, name to function of case and sets."""
    if case.prefix or case.window:
        raise Unsupported("no prefix in slots, no window")
    if case.seqs > 1 and not packed:
        raise Unsupported("one sequence")
    if case.seqs == 1:
        groups = functools.partial(sdpa_dense, backend, case, sets)
        return first_that_runs({"groups": lambda: groups(False), "K and V repeated": lambda: groups(True)})
    calls = first_that_runs({name: functools.partial(make, case, sets) for name, make in packed.items()})
    if backend.name == "CUDNN_ATTENTION":  # in torch 2.11, from cudaStreamEndCapture
        calls.no_graph = "torch's cuDNN operator for several sequences ends the process when it is captured"
    return calls


def packed_ways(backends):
    """How cuDNN and FlashAttention-2 take several sequences, the best way first."""
    nested = "nested tensors, K and V repeated"
    cudnn = {
        "packed": functools.partial(cudnn_packed, repeated=False),
        "packed, K and V repeated": functools.partial(cudnn_packed, repeated=True),
        nested: functools.partial(sdpa_nested, backends.CUDNN_ATTENTION),
    }
    fa2 = {
        "packed": fa2_packed,
        "varlen_attn": fa2_varlen,
        nested: functools.partial(sdpa_nested, backends.FLASH_ATTENTION),
    }
    return cudnn, fa2


def loop_peer(case, sets):
    """A sequence at a time, with a mask: does every shape, and says what is right on a CPU."""
    attention = torch.nn.functional.scaled_dot_product_attention
    groups = case.num_q_heads // case.num_kv_heads

    def one(s, b):
        new = slice(s.qo_indptr_host[b], s.qo_indptr_host[b + 1])
        slots = s.slots[s.kv_indptr_host[b] : s.kv_indptr_host[b + 1]].long()
        k, v = torch.cat([s.k_pool[slots], s.k[new]]), torch.cat([s.v_pool[slots], s.v[new]])
        position = case.prefix + torch.arange(case.extends[b], device=s.q.device).unsqueeze(1)
        key = torch.arange(len(k), device=s.q.device)
        visible = key <= position
        if case.window:
            visible &= position <= key + case.window
        q, k, v = (t.transpose(0, 1).unsqueeze(0) for t in (s.q[new], k, v))
        k, v = (t.repeat_interleave(groups, dim=1) for t in (k, v))
        return attention(q, k, v, attn_mask=visible)[0].transpose(0, 1)

    def call(s):
        return lambda: torch.cat([one(s, b) for b in range(case.seqs)])

    return Calls([call(s) for s in sets], lambda out: out)


@functools.cache
def fa3_interface():
    for name in ("flash_attn_interface", "fa3_fwd_interface", "flash_attn_3.flash_attn_interface"):
        try:
            return importlib.import_module(name)
        except (ImportError, OSError) as error:
            reason = f"{name}: {error}"
    raise Unsupported(reason)


def whole_pool(s):
    """The pool with the new tokens in it, for peers that read all keys from pages; and their slots."""
    k_pool, v_pool = torch.cat([s.k_pool, s.k]), torch.cat([s.v_pool, s.v])
    new_slots = torch.arange(s.k.shape[0], dtype=torch.int32, device=s.k.device) + s.k_pool.shape[0]
    return k_pool, v_pool, new_slots


def slots_of(case, s, new_slots):
    """Where each token lies, sequence by sequence."""
    prefixes, new = s.slots.view(case.seqs, case.prefix), new_slots.split(case.extends)
    return [torch.cat([prefixes[b], new[b]]) for b in range(case.seqs)]


def fa3_peer(case, sets):
    fa3 = fa3_interface()
    if case.head_dim > 256:
        raise Unsupported("head dimensions up to 256")
    longest = max(case.extends)
    options = {"causal": True, "window_size": (case.window, 0) if case.window else (-1, -1)}

    def plain(s):
        q, k, v = (t.unsqueeze(0) for t in (s.q, s.k, s.v))
        return lambda: fa3.flash_attn_func(q, k, v, **options)

    def packed(s):
        arguments = {
            "q": s.q, "k": s.k, "v": s.v, "cu_seqlens_q": s.qo_indptr, "cu_seqlens_k": s.qo_indptr,
            "max_seqlen_q": longest, "max_seqlen_k": longest,
        } | options  # fmt: skip
        return lambda: fa3.flash_attn_varlen_func(**arguments)

    def paged(s):
        k_pool, v_pool, new_slots = whole_pool(s)
        lengths = [case.prefix + extend for extend in case.extends]
        arguments = {
            "q": s.q, "k_cache": k_pool.unsqueeze(1), "v_cache": v_pool.unsqueeze(1),
            "cache_seqlens": torch.tensor(lengths, dtype=torch.int32, device=s.q.device),
            "page_table": torch.nn.utils.rnn.pad_sequence(slots_of(case, s, new_slots), batch_first=True),
            "cu_seqlens_q": s.qo_indptr, "max_seqlen_q": longest,
        } | options  # fmt: skip
        return lambda: fa3.flash_attn_with_kvcache(**arguments)

    def shape(out):
        out = out[0] if isinstance(out, tuple) else out
        return out.reshape(sum(case.extends), case.num_q_heads, case.head_dim_v)

    name, call = ("paged", paged) if case.prefix else ("packed", packed) if case.seqs > 1 else ("one", plain)
    return first_that_runs({name: lambda: Calls([call(s) for s in sets], shape)})


VLLM_FA3 = "_vllm_fa3_C.abi3.so"


def vllm_fa3_library(source):
    """(file, version) of the shared object; source: it, or vLLM's wheel."""
    path = Path(source)
    if not zipfile.is_zipfile(path):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        return path.resolve(), f"{VLLM_FA3} sha256 {digest[:12]}"
    with zipfile.ZipFile(path) as wheel:
        names = [name for name in wheel.namelist() if name.endswith("/" + VLLM_FA3)]
        if not names:
            sys.exit(f"--vllm-fa3: found no {VLLM_FA3} in {source}")
        return Path(wheel.extract(names[0], tempfile.mkdtemp(prefix="vllm-"))), path.name.split("-")[1]


@functools.cache
def vllm_fa3_forward(path):
    torch.ops.load_library(str(path))
    return torch.ops._vllm_fa3_C.fwd


def in_pages(case, s, page_size):
    """K and V of all tokens in pages, [pages, page_size, Hkv, D], and the table of each sequence's pages. Pages of
    one token stay where they are; longer ones hold each sequence's tokens in order, for which its slots have to be."""
    k_pool, v_pool, new_slots = whole_pool(s)
    tables = slots_of(case, s, new_slots)
    if page_size > 1:
        # Each sequence's rows, and zeros up to a whole page, one sequence behind the other.
        pages = [-(-len(slots) // page_size) for slots in tables]
        rows = torch.cat([torch.nn.functional.pad(slots, (0, count * page_size - len(slots)), value=-1)
                          for slots, count in zip(tables, pages)]).long()  # fmt: skip
        k_pool, v_pool = (pool[rows].masked_fill_((rows < 0)[:, None, None], 0) for pool in (k_pool, v_pool))
        first = [0, *itertools.accumulate(pages)]
        tables = [torch.arange(begin, begin + count, dtype=torch.int32, device=rows.device)
                  for begin, count in zip(first, pages)]  # fmt: skip
    if case.shared_kv:
        v_pool = k_pool[..., : case.head_dim_v]
    k_pages, v_pages = (pool.unflatten(0, (-1, page_size)) for pool in (k_pool, v_pool))
    return k_pages, v_pages, torch.nn.utils.rnn.pad_sequence(tables, batch_first=True)


def fa3_vllm_arguments(case, s, page_size):
    """By the names of vLLM's operator; what is not here is None or as in FA3_VLLM_DEFAULTS."""
    longest = max(case.extends)
    arguments = {
        "q": s.q, "cu_seqlens_q": s.qo_indptr, "max_seqlen_q": longest, "max_seqlen_k": case.prefix + longest,
        "scale": case.head_dim**-0.5, "window_left": case.window or -1, "window_right": 0 if case.window else -1,
    }  # fmt: skip
    if case.prefix:
        k, v, arguments["page_table"] = in_pages(case, s, page_size)
        lengths = [case.prefix + extend for extend in case.extends]
        arguments["seqused_k"] = torch.tensor(lengths, dtype=torch.int32, device=s.q.device)
    else:
        k, v, arguments["cu_seqlens_k"] = s.k, s.v, s.qo_indptr
    if case.shared_kv:  # the rope columns are its keys, the latent ones its values and more of its queries
        latent = case.head_dim_v
        arguments["q"], arguments["q_v"], k = s.q[..., latent:], s.q[..., :latent], k[..., latent:]
    return arguments | {"k": k, "v": v}


# The operator takes no names; this is its order.
FA3_VLLM_ORDER = """q k v k_new v_new q_v out cu_seqlens_q cu_seqlens_k cu_seqlens_k_new seqused_q seqused_k
    max_seqlen_q max_seqlen_k page_table kv_batch_idx leftpad_k rotary_cos rotary_sin seqlens_rotary q_descale
    k_descale v_descale scale causal window_left window_right softcap rotary_interleaved scheduler_metadata
    num_splits pack_gqa sm_margin s_aux cp_world_size cp_rank cp_tot_seqused_k""".split()
# num_splits 0: it chooses.
FA3_VLLM_DEFAULTS = {"causal": True, "softcap": 0.0, "rotary_interleaved": False, "num_splits": 0, "sm_margin": 0,
                     "cp_world_size": 1, "cp_rank": 0}  # fmt: skip


def fa3_vllm_peer(library, page_size, case, sets):
    if not library:
        raise Unsupported("no --vllm-fa3 given")
    if page_size > 1 and not (case.prefix and case.slots == "ordered"):
        raise Unsupported(f"pages of {page_size} are for a prefix in ordered slots")
    if case.head_dim > 256 and not case.shared_kv:
        raise Unsupported("head dimensions up to 256")
    forward = vllm_fa3_forward(library[0])

    def call(s):
        given = FA3_VLLM_DEFAULTS | fa3_vllm_arguments(case, s, page_size)
        arguments = [given.get(name) for name in FA3_VLLM_ORDER]
        return lambda: forward(*arguments)[0]

    way = f"pages of {page_size}" if case.prefix else "packed"
    return first_that_runs({way: lambda: Calls([call(s) for s in sets], lambda out: out)})


def flashinfer_peer(case, sets):
    try:
        flashinfer = importlib.import_module("flashinfer")
    except (ImportError, OSError) as error:
        raise Unsupported(str(error)) from error
    workspace = torch.empty(512 << 20, dtype=torch.uint8, device="cuda")
    common = {"causal": True, "window_left": case.window or -1, "q_data_type": sets[0].q.dtype}

    def plain(s):
        wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(workspace, "NHD")
        wrapper.plan(s.qo_indptr, s.qo_indptr, case.num_q_heads, case.num_kv_heads, case.head_dim,
                     head_dim_vo=case.head_dim_v, **common)  # fmt: skip
        return lambda: wrapper.run(s.q, s.k, s.v)

    def paged(s):
        k_pool, v_pool, new_slots = whole_pool(s)
        last = torch.ones(case.seqs, dtype=torch.int32, device="cuda")
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")
        wrapper.plan(s.qo_indptr, s.qo_indptr + s.kv_indptr, torch.cat(slots_of(case, s, new_slots)), last,
                     case.num_q_heads, case.num_kv_heads, case.head_dim, 1, **common)  # fmt: skip
        return lambda: wrapper.run(s.q, (k_pool.unsqueeze(1), v_pool.unsqueeze(1)))

    # Plans share the workspace, so there is one, for the first set.
    name, call = ("paged", paged) if case.prefix else ("packed", plain)
    return first_that_runs({name: lambda: Calls([call(sets[0])], lambda out: out)})


# ---- measuring ---------------------------------------------------------------------------------


def captured(run, copies):
    """The runs of all sets as graphs, without what they cost the host."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run(0)
    torch.cuda.synchronize()
    graphs = []
    for i in range(copies):
        graphs.append(torch.cuda.CUDAGraph())
        # Relaxed: a library may load a kernel or allocate while it is captured.
        with torch.cuda.graph(graphs[i], capture_error_mode="relaxed"):
            run(i)
    return lambda i: graphs[i % copies].replay()


def measure_on_cpu(run, warm_up, repeats):
    times = []
    for i in range(warm_up + repeats):
        start = time.perf_counter()
        run(i)
        times.append((time.perf_counter() - start) * 1e3)
    return summary(times[warm_up:])


def host_ms_of(run):
    """What a call takes the host; the best of three, since the machine may do something else."""
    times = []
    for i in range(3):
        start = time.perf_counter()
        run(i)
        times.append((time.perf_counter() - start) * 1e3)
        torch.cuda.synchronize()
    return min(times)


def in_graphs(run, copies, no_graph):
    """The same runs as graphs, and True; or the runs as they are, and why."""
    if no_graph:
        return run, f"no: {no_graph}"
    try:
        replay = captured(run, copies)
    except Exception as error:  # the library's own reason
        torch.cuda.synchronize()
        return run, f"no: {one_line(error)}"
    replay(0)
    return replay, True


def measure_on_gpu(run, copies, args, no_graph, ragged):
    """A row of times; ragged: graphs are tried at once."""
    for i in range(args.warm_up):
        run(i)
    torch.cuda.synchronize()
    row = {"host_ms": host_ms_of(run)}
    if ragged or row["host_ms"] > HOST_BOUND_MS:
        run, row["graph"] = in_graphs(run, copies, no_graph)
    row |= summary(event_times(run, args, row))
    if is_wide(row) and "graph" not in row:
        run, row["graph"] = in_graphs(run, copies, no_graph)
        if row["graph"] is True:
            row |= summary(event_times(run, args, row))
    return row


def event_times(run, args, row):
    host_ms = HOST_BOUND_MS if row.get("graph") is True else row["host_ms"]
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(args.repeats)]
    # The GPU waits until about all runs are enqueued, so that it never waits for the host between two events.
    torch.cuda._sleep(int(SLEEP_CYCLES_A_MS * min(5 + 1.5 * host_ms * args.repeats, MAX_SLEEP_MS)))
    for i, (first, last) in enumerate(events):
        first.record()
        run(args.warm_up + i)
        last.record()
    torch.cuda.synchronize()
    return [first.elapsed_time(last) for first, last in events]


def is_wide(row):
    """Whether something else than the kernel is in the times."""
    return row["median_ms"] > WIDE * row["min_ms"]


def summary(times):
    return {"median_ms": statistics.median(times), "min_ms": min(times), "max_ms": max(times), "times_ms": times}


def rates(case, row):
    return {"tflops": case.flop / row["median_ms"] * 1e-9, "gbytes_per_s": case.bytes / row["median_ms"] * 1e-6}


def with_round_before(before, row, case):
    """A peer's row of this round and of those before; why there is none, where it failed in one."""
    for one in (before, row):
        if one is not None and ("wrong" in one or "times_ms" not in one):
            return one
    if before is None:
        return row
    row = row | summary(before["times_ms"] + row["times_ms"])
    return row | rates(case, row)


def difference(a, b):
    """Relative Frobenius norm, in pieces so that float copies stay small."""
    up = down = 0.0
    for x, y in zip(a.split(1024), b.split(1024)):
        x, y = x.float(), y.float()
        up += (x - y).pow(2).sum(dtype=torch.float64).item()
        down += y.pow(2).sum(dtype=torch.float64).item()
    return math.sqrt(up / down)  # NaN stays NaN


def disagreement(row, out, reference):
    """Why a result is wrong, or nothing; the difference goes into the row."""
    if reference is None:
        return None if bool(torch.isfinite(out).all()) else "not finite"
    if out.shape != reference.shape:
        return f"shape {tuple(out.shape)}, expected {tuple(reference.shape)}"
    row["difference"] = difference(out, reference)
    if row["difference"] <= MAX_DIFFERENCE:
        return None
    return f"relative difference {row['difference']:.2e}, allowed {MAX_DIFFERENCE:.0e}"


def check_and_measure(peer, case, sets, args, reference):
    """The row of a peer that runs, and the reference, which is the first result."""
    row = {}
    gpu = args.device == "cuda"
    peer.run(0)
    if gpu:
        torch.cuda.synchronize()
    out = peer.result()
    wrong = disagreement(row, out, reference)
    if wrong:
        row["wrong"] = wrong
    if reference is None:
        reference = out.clone()
    del out
    row |= peer.details()
    if gpu:
        torch.cuda.synchronize()
        time.sleep(args.pause)
        row |= measure_on_gpu(peer.run, len(sets), args, getattr(peer, "no_graph", ""), case.ragged)
    else:
        row |= measure_on_cpu(peer.run, args.warm_up, args.repeats)
    return row | rates(case, row), reference


def measure_peer(name, prepare, case, sets, args, reference):
    """A row of the result: times, or why there are none. Ours, without a reference, becomes it."""
    peer = None
    try:
        peer = prepare(case, sets)
        return check_and_measure(peer, case, sets, args, reference)
    except Unsupported as reason:
        return {"unsupported": one_line(reason)}, reference
    except Exception as error:  # a peer that fails keeps none of the others from being measured
        row = {"unsupported": f"{type(error).__name__}: {one_line(error)}"}
        if name.startswith("extattn"):
            row["wrong"] = row["unsupported"]
        return row, reference
    finally:
        if peer:
            peer.close()


def peers_of(args, ours, sglang):
    """Name to prepare(case, sets), ours first."""
    depths = DEPTHS if args.device == "cuda" else (0,)
    peers = {f"extattn{d or ''}": functools.partial(lambda d, case, sets: ours.prepare(case, sets, d), d)
             for d in sorted(depths)}  # fmt: skip
    others = cpu_peers() if args.device == "cpu" else gpu_peers(sglang, args.vllm_fa3)
    unknown = set(args.peer or ()) - set(others)
    if unknown:
        sys.exit(f"--peer: found {', '.join(sorted(unknown))}, allowed {', '.join(others)}")
    return peers | {name: prepare for name, prepare in others.items() if not args.peer or name in args.peer}


def cpu_peers():
    return {"torch": functools.partial(sdpa_peer, None, {}), "loop": loop_peer}


def gpu_peers(sglang, vllm_fa3):
    from torch.nn.attention import SDPBackend

    triton = {f"triton{stages}": functools.partial(triton_peer, sglang[0], stages) if sglang else missing_sglang
              for stages in (1, 2, 3)}  # fmt: skip
    cudnn, fa2 = packed_ways(SDPBackend)
    return triton | {
        "cudnn": functools.partial(sdpa_peer, SDPBackend.CUDNN_ATTENTION, cudnn),
        "fa2": functools.partial(sdpa_peer, SDPBackend.FLASH_ATTENTION, fa2),
        "fa3": fa3_peer,
        "fa3_vllm": functools.partial(fa3_vllm_peer, vllm_fa3, 1),
        "fa3_vllm_16": functools.partial(fa3_vllm_peer, vllm_fa3, 16),
        "fa3_vllm_64": functools.partial(fa3_vllm_peer, vllm_fa3, 64),
        "flashinfer": flashinfer_peer,
    }


def missing_sglang(_case, _sets):
    raise Unsupported("no --sglang given")


def ratios(rows):
    """Their time over ours, automatic depth: above 1 we are faster."""
    ours = rows["extattn"].get("median_ms")
    result = {}
    if ours is None:
        return result
    for name, row in rows.items():
        if not name.startswith("extattn") and "median_ms" in row:
            result[name] = row["median_ms"] / ours
    for family in ("triton", "fa3_vllm"):
        theirs = [value for name, value in result.items() if name.startswith(family)]
        if theirs:
            result[f"best {family}"] = min(theirs)
    return result


def print_case(case, rows, ratio):
    print(f"\n{case.name()}")
    for name, row in rows.items():
        if "unsupported" in row:
            print(f"  {name:11} -  {row['unsupported'][:100]}" + ("  WRONG" if "wrong" in row else ""))
            continue
        against = f"{ratio[name]:6.2f}x ours" if name in ratio else ""
        wrong = f"  WRONG: {row['wrong']}" if "wrong" in row else ""
        wrong += f"  WIDE: least {row['min_ms']:.3f} ms, graph {row.get('graph')}" if is_wide(row) else ""
        depth = f"  depth {row['stages']}" if "stages" in row else f"  {row['way']}" if "way" in row else ""
        rate = f"{row['tflops']:9.1f} TFLOP/s" if row["tflops"] >= 1 else f"{1e3 * row['tflops']:9.1f} GFLOP/s"
        print(f"  {name:11}{row['median_ms']:10.3f} ms{rate}{row['gbytes_per_s']:8.0f} GB/s  {against}{depth}{wrong}")
    sys.stdout.flush()


def measure_case(case, peers, args):
    sets = make_sets(case, args.device)
    rows, reference = {}, None
    for _ in range(args.rounds):
        for name, prepare in peers.items():
            if name in rows and "times_ms" not in rows[name]:
                continue  # it cannot run
            row, reference = measure_peer(name, prepare, case, sets, args, reference)
            rows[name] = with_round_before(rows.get(name), row, case)
            if args.device == "cuda":
                torch.cuda.empty_cache()
    ratio = ratios(rows)
    print_case(case, rows, ratio)
    return {"case": case.record(), "results": rows, "times_over_ours": ratio}


# ---- the whole ---------------------------------------------------------------------------------


def cases_of(args):
    cases = []
    for suite in args.suite:
        command = [args.command, "bench", suite, "--list", "--shrink", str(args.shrink)]
        listed = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        for entry in listed["cases"]:
            cases.append((suite, Case(**entry)))
    return quick_ones(cases) if args.quick else cases


def quick_ones(cases):
    """Of each suite the shapes with 16 query heads, or its first three where it has none."""
    chosen = []
    for suite in dict.fromkeys(suite for suite, _ in cases):
        mine = [entry for entry in cases if entry[0] == suite]
        chosen += [entry for entry in mine if entry[1].num_q_heads == 16] or mine[:3]
    return chosen


def compile_ahead(args, count):
    """Triton compiles in a process of its own for each case, all at once, into its cache on disk."""

    def compile_one(index):
        command = [sys.executable, __file__, *sys.argv[1:], "--compile-case", str(index)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    start = time.monotonic()
    with ThreadPoolExecutor(max(1, min(count, (os.cpu_count() or 2) // 2))) as pool:
        answers = list(pool.map(compile_one, range(count)))
    for index, answer in enumerate(answers):
        if answer.returncode != 0:
            print(f"compiling case {index} ahead: {(answer.stderr.strip().splitlines() or ['failed'])[-1]}")
    print(f"compiled ahead in {time.monotonic() - start:.0f} s", flush=True)


def compile_case(case, sglang):
    case = case.shortened()
    sets = [make_tensors(case, "cuda", 0)]
    for stages in (1, 2, 3):
        with contextlib.suppress(Unsupported):
            triton_peer(sglang[0], stages, case, sets)


def versions(ours, sglang, vllm_fa3=None):
    found = {"extattn": ours.version, "python": platform.python_version(), "torch": torch.__version__}
    for package in ("triton", "fa3-fwd", "flash-attn-3", "flashinfer-python"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    if torch.cuda.is_available():
        found["cuda"] = torch.version.cuda
        found["cudnn"] = torch.backends.cudnn.version()
    if sglang:
        found["sglang"] = sglang[1]
    if vllm_fa3:
        found["vllm"] = vllm_fa3[1]
    return found


def driver_text():
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return answer.stdout.strip().splitlines()[0]


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", type=Path, default=Path("build/libextattn.so"))
    parser.add_argument("--command", type=Path, default=Path("build/extattn"), help="for the lists of shapes")
    suites = "seed (default), window, mla, prefix, ragged, chunks, verify, cpu (default on a CPU); may be repeated"
    parser.add_argument("--suite", action="append", help=suites)
    parser.add_argument("--peer", action="append", metavar="NAME", help="only this one beside ours; may be repeated")
    parser.add_argument("--shrink", type=int, default=1, help="divide the tokens of each shape by this, to try it out")
    parser.add_argument("--sglang", help="SGLang's wheel, or a folder that holds its files")
    parser.add_argument("--vllm-fa3", help="vLLM's wheel, or the _vllm_fa3_C.abi3.so in it")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    families = ["auto", "cpu", "portable", "hopper"]
    parser.add_argument("--family", choices=families, default="auto", help="of our kernels")
    parser.add_argument("--threads", type=int, default=0, help="of a CPU; 0: all")
    parser.add_argument("--rounds", type=int, default=4, help="the peers take turns, so often")
    parser.add_argument("--warm-up", type=int, default=2, help="runs before those that count, in each round")
    parser.add_argument("--pause", type=float, default=0.25, help="seconds of rest before each turn, on a GPU")
    parser.add_argument("--repeats", type=int, default=4, help="runs that count, in each round")
    parser.add_argument("--quick", action="store_true", help="fewer shapes, within a minute")
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--compile-case", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.pause < 0:
        parser.error(f"--pause: found {args.pause}, allowed 0 or more")
    if args.vllm_fa3 and not Path(args.vllm_fa3).is_file():
        parser.error(f"--vllm-fa3: found no file {args.vllm_fa3}")
    if args.device == "cpu":
        args.pause = 0.0
    args.suite = args.suite or ["cpu" if args.device == "cpu" else "seed"]
    args.library, args.command = args.library.resolve(), args.command.resolve()
    return args


def main():
    args = parse()
    if args.device == "cuda" and not torch.cuda.is_available():
        print("skipped: torch sees no GPU")
        return 77
    if args.threads:
        torch.set_num_threads(args.threads)
    cases = cases_of(args)

    sglang = None
    wants_triton = not args.peer or any(name.startswith("triton") for name in args.peer)
    if args.sglang and args.device == "cuda" and wants_triton:
        try:
            sglang = sglang_modules(args.sglang)
        except (Unsupported, ImportError, OSError) as error:
            print(f"SGLang is left out: {error}")
    args.vllm_fa3 = vllm_fa3_library(args.vllm_fa3) if args.vllm_fa3 and args.device == "cuda" else None
    if args.compile_case is not None:
        compile_case(cases[args.compile_case][1], sglang)
        return 0
    if sglang:
        compile_ahead(args, len(cases))

    ours = Extattn(args.library, args.device, args.threads, args.family)
    info = ours.device_info()
    peers = peers_of(args, ours, sglang)
    record = head_of(args, info, versions(ours, sglang, args.vllm_fa3))
    print(f"{info.name.decode()}, {info.arch.decode()}; {record['versions']}")
    for suite, case in cases:
        record["cases"].append({"suite": suite} | measure_case(case, peers, args))
        if args.json:
            args.json.write_text(json.dumps(record, indent=1) + "\n")

    results = record["cases"]
    wrong = [f"{r['suite']}: {n}" for r in results for n, row in r["results"].items() if "wrong" in row]
    print(f"\n{len(results)} cases, {len(wrong)} disagreements {wrong if wrong else ''}")
    return 1 if wrong else 0


def head_of(args, info, found_versions):
    """The record without its cases."""
    return {
        "what": "extattn and its peers",
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": args.commit,
        "family": args.family,
        "device": {"name": info.name.decode(), "arch": info.arch.decode(), "threads": info.num_threads},
        "driver": driver_text() if args.device == "cuda" else None,
        "versions": found_versions,
        "method": {"rounds": args.rounds, "pause_s": args.pause, "warm_up": args.warm_up, "repeats": args.repeats,
                   "statistic": "median", "clock": "CUDA events" if args.device == "cuda" else "host"},
        "shrink": args.shrink,
        "cases": [],
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
