"""Shapes, and tensors of them."""

import dataclasses
import itertools
import math

import torch

ROTATION_BYTES = 512 << 20
MAX_COPIES = 8
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


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
    dtype = DTYPES[case.dtype]

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
