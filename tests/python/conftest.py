"""What the tests of the Python package share: a random batch, and the attention of its definition."""

from __future__ import annotations

import numpy as np
import pytest


class Batch:
    """A random batch in numpy arrays; kwargs() are extend_attention's arguments."""

    def __init__(self, seed=0, prefix=(5, 0, 17), extend=(3, 4, 1), q_heads=4, kv_heads=2, dim=32, dim_v=None,
                 page_size=1, dtype=np.float32, index=np.int32):  # fmt: skip
        rng = np.random.default_rng(seed)
        dim_v = dim if dim_v is None else dim_v
        self.prefix, self.extend = np.array(prefix), np.array(extend)
        tokens, pages = int(sum(extend)), -(-(int(sum(prefix)) + 7) // page_size)

        def normal(*shape):
            return rng.standard_normal(shape, dtype=np.float32).astype(dtype)

        self.q = normal(tokens, q_heads, dim)
        self.k = normal(tokens, kv_heads, dim)
        self.v = normal(tokens, kv_heads, dim_v)
        pool = (pages,) if page_size == 1 else (pages, page_size)
        self.k_cache = normal(*pool, kv_heads, dim)
        self.v_cache = normal(*pool, kv_heads, dim_v)
        self.qo_indptr = np.concatenate([[0], np.cumsum(extend)]).astype(np.int32)
        self.kv_indptr = np.concatenate([[0], np.cumsum(prefix)]).astype(np.int32)
        self.kv_indices = rng.permutation(pages * page_size)[: int(sum(prefix))].astype(index)

    def args(self, convert=lambda x: x):
        names = ("q", "k", "v", "k_cache", "v_cache", "qo_indptr", "kv_indptr", "kv_indices")
        return [convert(getattr(self, name)) for name in names]


def attention(batch, causal=True, scale=None, cap=0.0, window=-1, sinks=None, visible=None, k_scale=1.0, v_scale=1.0,
              xai=0, skip_prefix=False, skip_extend=False):  # fmt: skip
    """out and lse in float64, straight from the definition. visible(b): E x (P+E) booleans in causal's place."""
    q, k, v = (getattr(batch, name).astype(np.float64) for name in "qkv")
    k_pool, v_pool = (getattr(batch, name).astype(np.float64) for name in ("k_cache", "v_cache"))
    if k_pool.ndim == 4:
        k_pool, v_pool = k_pool.reshape(-1, *k_pool.shape[2:]), v_pool.reshape(-1, *v_pool.shape[2:])
    heads, group = q.shape[1], q.shape[1] // k.shape[1]
    scale = scale or q.shape[2] ** -0.5
    out, lse = np.zeros((*q.shape[:2], v.shape[2])), np.full(q.shape[:2], -np.inf)
    for b, (prefix, extend) in enumerate(zip(batch.prefix, batch.extend)):
        first = batch.qo_indptr[b]
        slots = batch.kv_indices[batch.kv_indptr[b] : batch.kv_indptr[b + 1]]
        keys = np.concatenate([k_pool[slots] * k_scale, k[first : first + extend]])
        values = np.concatenate([v_pool[slots] * v_scale, v[first : first + extend]])
        i = prefix + np.arange(extend)[:, None]
        j = np.arange(prefix + extend)[None, :]
        see = visible(b) if visible else (j <= i if causal else np.ones((extend, prefix + extend), bool))
        if window > 0:
            see = see & (i <= j + window)
            if not causal:
                see = see & ((j < prefix) | (j <= i + window))
        if skip_prefix:
            see = see & (j >= prefix)
        if skip_extend:
            see = see & (j < prefix)
        for h in range(heads):
            s = scale * q[first : first + extend, h] @ keys[:, h // group].T
            if cap:
                s = cap * np.tanh(s / cap)
            if xai:
                s = s * np.where(i > xai, np.log2(np.maximum(i, 1)) / np.log2(xai), 1.0)
            s = np.where(see, s, -np.inf)
            for row in range(extend):
                if not see[row].any():
                    continue
                top = s[row].max()
                p = np.exp(s[row] - top)
                total = p.sum() + (np.exp(sinks[h] - top) if sinks is not None else 0.0)
                out[first + row, h] = p @ values[:, h // group] / total
                lse[first + row, h] = np.log(total) + top
    return out, lse


def check_close(found, wanted, bound=1e-5):
    found = np.asarray(found, dtype=np.float64)
    assert found.shape == wanted.shape
    same = np.isinf(wanted)
    assert (found[same] == wanted[same]).all()
    error = np.linalg.norm(found[~same] - wanted[~same]) / max(np.linalg.norm(wanted[~same]), 1e-30)
    assert error <= bound, f"relative error {error}, allowed {bound}"


@pytest.fixture
def batch():
    return Batch()
