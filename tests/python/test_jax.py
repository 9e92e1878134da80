"""JAX arrays, which come in through DLPack, and numpy's bf16 and 8-bit floats, which come with JAX (ml_dtypes)."""

from __future__ import annotations

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="jax is not installed")

import ml_dtypes  # noqa: E402
from conftest import Batch, attention, check_close  # noqa: E402

import extattn  # noqa: E402

jnp = jax.numpy
CPU = jax.devices("cpu")[0]  # these tests compare with numpy's; test_gpu.py has JAX's arrays on a GPU


def on_cpu(x):
    return jax.device_put(np.asarray(x), CPU)


def test_results_are_jax_arrays():
    batch = Batch(dim=64)
    args = batch.args(on_cpu)
    out, lse = extattn.extend_attention(*args, return_lse=True)
    assert isinstance(out, jax.Array)
    assert isinstance(lse, jax.Array)
    wanted, wanted_lse = attention(batch)
    check_close(out, wanted)
    check_close(lse, wanted_lse)
    prefix = extattn.extend_attention(*args, skip_extend=True, return_lse=True)
    new = extattn.extend_attention(*args, skip_prefix=True, return_lse=True)
    merged, _ = extattn.merge(*prefix, *new)
    assert isinstance(merged, jax.Array)
    check_close(merged, wanted)


@pytest.mark.parametrize("cache", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2])
def test_same_bits_as_numpy(cache):
    args = Batch(dim=64).args(on_cpu)
    args[:5] = [x.astype(jnp.bfloat16) for x in args[:5]]
    args[3:5] = [x.astype(cache) for x in args[3:5]]
    out = extattn.extend_attention(*args)
    assert out.dtype == jnp.bfloat16
    wanted = extattn.extend_attention(*[np.asarray(x) for x in args])
    assert wanted.dtype == ml_dtypes.bfloat16
    assert (np.asarray(out).view(np.uint16) == wanted.view(np.uint16)).all()


@pytest.mark.parametrize("name", ["out", "lse"])
def test_jax_arrays_are_not_written(name):
    batch = Batch(dim=64)
    args = batch.args(on_cpu)
    out, lse = np.zeros_like(batch.q), np.zeros(batch.q.shape[:2], np.float32)
    results = {"out": out, "lse": lse, name: on_cpu({"out": out, "lse": lse}[name])}
    with pytest.raises(extattn.InvalidError, match=f"^{name}: found a JAX array, which is immutable"):
        extattn.extend_attention(*args, **results)
    parts = on_cpu(out), on_cpu(lse)
    with pytest.raises(extattn.InvalidError, match=f"^{name}: found a JAX array, which is immutable"):
        extattn.merge(*parts, *parts, **results)
    assert not np.asarray(results[name]).any()
    extattn.extend_attention(*args, out=out, lse=lse)
    check_close(out, attention(batch)[0])


def test_scales_of_jax_are_refused():
    with pytest.raises(extattn.InvalidError, match=r"^k_scale: found jax.*, allowed a number"):
        extattn.extend_attention(*Batch().args(on_cpu), k_scale=jnp.float32(2.0) * 1)
