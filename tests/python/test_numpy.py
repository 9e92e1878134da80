"""extend_attention, merge and plan on numpy arrays."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from conftest import Batch, attention, check_close

import extattn

OPTIONS = [
    ({}, {}),
    ({"causal": False}, {"causal": False}),
    ({"softmax_scale": 0.3}, {"scale": 0.3}),
    ({"logit_cap": 2.0}, {"cap": 2.0}),
    ({"window_left": 4}, {"window": 4}),
    ({"window_left": 2, "causal": False}, {"window": 2, "causal": False}),
    ({"k_scale": 0.5, "v_scale": 2.0}, {"k_scale": 0.5, "v_scale": 2.0}),
    ({"xai_temperature_len": 4}, {"xai": 4}),
    ({"skip_prefix": True}, {"skip_prefix": True}),
    ({"skip_extend": True}, {"skip_extend": True}),
    ({"family": "reference"}, {}),
]


@pytest.mark.parametrize(("options", "meaning"), OPTIONS, ids=[str(options) for options, _ in OPTIONS])
@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_options(options, meaning, page_size, index):
    batch = Batch(page_size=page_size, index=index, dim=40, dim_v=24)
    out, lse = extattn.extend_attention(*batch.args(), return_lse=True, **options)
    wanted, wanted_lse = attention(batch, **meaning)
    check_close(out, wanted)
    check_close(lse, wanted_lse)


def test_sinks(batch):
    sinks = np.array([0.5, -1.0, 2.0, 0.0], np.float32)
    out, lse = extattn.extend_attention(*batch.args(), sinks=sinks, return_lse=True)
    wanted, wanted_lse = attention(batch, sinks=sinks)
    check_close(out, wanted)
    check_close(lse, wanted_lse)


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8])
@pytest.mark.parametrize("indptr", [np.int32, np.int64])
@pytest.mark.parametrize("skip_prefix_custom_mask", [True, False])
def test_custom_mask(batch, dtype, indptr, skip_prefix_custom_mask):
    rng = np.random.default_rng(3)
    masks = [rng.random((e, p + e)) < 0.5 for p, e in zip(batch.prefix, batch.extend)]
    starts = np.concatenate([[0], np.cumsum([m.size for m in masks])])[:-1].astype(indptr)
    flat = np.concatenate([m.ravel() for m in masks]).astype(dtype)

    def visible(b):
        see = masks[b].copy()
        if skip_prefix_custom_mask:
            see[:, : batch.prefix[b]] = True
        return see

    out = extattn.extend_attention(
        *batch.args(), custom_mask=flat, mask_indptr=starts, skip_prefix_custom_mask=skip_prefix_custom_mask
    )
    check_close(out, attention(batch, visible=visible)[0])


def test_half_precision():
    batch = Batch(dtype=np.float16, dim=64)
    check_close(extattn.extend_attention(*batch.args()), attention(batch)[0], 5e-4)


def test_views(batch):
    """K and V interleaved in one buffer, q inside a wider one, out with gaps."""
    packed = extattn.extend_attention(*batch.args())
    kv = np.stack([batch.k, batch.v], axis=1)
    pool = np.stack([batch.k_cache, batch.v_cache], axis=2)
    wide = np.full((batch.q.shape[0], 9, 40), np.nan, np.float32)
    wide[:, 2:6, 4:36] = batch.q
    room = np.zeros((batch.q.shape[0], 7, 48), np.float32)
    out = room[:, 1:5, 8:40]
    result = extattn.extend_attention(
        wide[:, 2:6, 4:36], kv[:, 0], kv[:, 1], pool[:, :, 0], pool[:, :, 1], *batch.args()[5:], out=out
    )
    assert result is out
    assert (out == packed).all()
    out[:] = 0
    assert not room.any()


def test_latent_attention():
    """v_cache None, and views of k, are the same call as copies of those columns."""
    batch = Batch(kv_heads=1, dim=48, dim_v=32)
    batch.v, batch.v_cache = batch.k[..., :32].copy(), batch.k_cache[..., :32].copy()
    wanted = extattn.extend_attention(*batch.args())
    args = batch.args()
    views = extattn.extend_attention(args[0], args[1], args[1][..., :32], args[3], args[3][..., :32], *args[5:])
    width = extattn.extend_attention(args[0], args[1], 32, args[3], None, *args[5:])
    assert (views == wanted).all()
    assert (width == wanted).all()


def test_the_halves_merge(batch):
    whole = extattn.extend_attention(*batch.args(), return_lse=True)
    prefix = extattn.extend_attention(*batch.args(), skip_extend=True, return_lse=True)
    new = extattn.extend_attention(*batch.args(), skip_prefix=True, return_lse=True)
    out, lse = extattn.merge(*prefix, *new)
    check_close(out, whole[0].astype(np.float64), 1e-6)
    check_close(lse, whole[1].astype(np.float64), 1e-6)
    into = extattn.merge(*prefix, *new, out=prefix[0], lse=prefix[1])
    assert into[0] is prefix[0]
    assert (prefix[0] == out).all()


def test_skip_extend_needs_no_new_keys(batch):
    args = batch.args()
    wanted = extattn.extend_attention(*args, skip_extend=True)
    args[1] = args[2] = None
    assert (extattn.extend_attention(*args, skip_extend=True) == wanted).all()


def test_an_empty_batch():
    batch = Batch(prefix=(), extend=())
    out, lse = extattn.extend_attention(*batch.args(), return_lse=True)
    assert out.shape == (0, 4, 32)
    assert lse.shape == (0, 4)


def refused(message, error=extattn.InvalidError):
    return pytest.raises(error, match="^" + message)


def test_refusals(batch):
    """One line each: the argument, what was found, what is allowed; and out stays as it was."""
    good = dict(zip(("q", "k", "v", "k_cache", "v_cache", "qo_indptr", "kv_indptr", "kv_indices"), batch.args()))
    out = np.full(batch.q.shape, 7.0, np.float32)

    def call(**changes):
        extattn.extend_attention(**{**good, "out": out, **changes})

    with refused(r"q: found shape \[8, 128\], allowed \[tokens, heads, head_dim\]"):
        call(q=batch.q.reshape(8, 128))
    with refused(r"q: found type float64, allowed bf16, f16, f32"):
        call(q=batch.q.astype(np.float64))
    with refused(r"k: found type f16, allowed f32, as q"):
        call(k=batch.k.astype(np.float16))
    with refused(r"v: found shape \[3, 2, 32\], allowed \[8, heads, head_dim\]"):
        call(v=batch.v[:3])
    with refused(r"k_cache: found shape \[29, 2, 31\], allowed a last dimension of 32, as q"):
        call(k_cache=np.ascontiguousarray(batch.k_cache[..., :31]))
    with refused(r"v_cache: found shape \[28, 2, 32\], allowed \[29, 2\] and a head_dim_v, as k_cache"):
        call(v_cache=batch.v_cache[:28])
    with refused(r"k: found strides .*, allowed a last dimension that is contiguous"):
        call(k=np.zeros((8, 2, 64), np.float32)[..., ::2])
    with refused(r"kv_indptr: found shape \[3\], allowed \[4\]"):
        call(kv_indptr=batch.kv_indptr[:3])
    with refused(r"qo_indptr: found type i64, allowed i32"):
        call(qo_indptr=batch.qo_indptr.astype(np.int64))
    with refused(r"out: found shape \[8, 4, 31\], allowed \[8, 4, 32\]"):
        call(out=np.zeros((8, 4, 31), np.float32))
    with refused(r"mask_indptr: found None, allowed \[3\], as there is a custom_mask"):
        call(custom_mask=np.ones(100, bool))
    with refused(r"sinks: found shape \[5\], allowed \[4\]"):
        call(sinks=np.zeros(5, np.float32))
    with refused(r"q: found list, allowed an array"):
        call(q=[1.0])
    with refused(r"family: found 'fast', allowed auto, reference"):
        call(family="fast")
    with refused(r"softmax_scale: found -1"):
        call(softmax_scale=-1)
    # By the library, in its own words:
    with refused(r"kv_indices\[2\]: found 29, allowed 0 to 28"):
        call(kv_indices=np.where(np.arange(22) == 2, 29, batch.kv_indices).astype(np.int32))
    with refused(r"window_left: found -3"):
        call(window_left=-3)
    with refused(r"family: found hopper", extattn.UnsupportedError):
        call(family="hopper")
    with refused(r"stages: found 3", extattn.UnsupportedError):
        call(stages=3)
    assert (out == 7.0).all()


def test_exceptions_are_of_two_kinds():
    assert issubclass(extattn.InvalidError, ValueError)
    assert issubclass(extattn.OutOfMemoryError, MemoryError)
    assert issubclass(extattn.DoesNotFitError, extattn.Error)


def test_plan():
    info = extattn.plan(num_q_heads=32, num_kv_heads=8, head_dim=128, dtype="bf16", device="sm_90", stages=1)
    assert info.stages == 1
    assert info.smem_bytes > 0
    assert info.reason
    assert extattn.plan(num_q_heads=4, num_kv_heads=2, head_dim=64, dtype=np.dtype("float32")).family == "cpu"
    with refused("stages: found 99", extattn.DoesNotFitError):
        extattn.plan(num_q_heads=32, num_kv_heads=8, head_dim=512, device="sm_90", stages=99)
    with refused("device: found 'tpu', allowed cpu, cuda"):
        extattn.plan(num_q_heads=32, num_kv_heads=8, head_dim=512, device="tpu")


def test_capture(batch, tmp_path, capfd):
    with extattn.capture(tmp_path, call=2):
        for _ in range(3):
            extattn.extend_attention(*batch.args())
    extattn.extend_attention(*batch.args())
    files = sorted(tmp_path.iterdir())
    assert [f.name for f in files] == [f"extattn-{os.getpid()}-000002-call.safetensors"]
    assert f"captured a call in {files[0]}" in capfd.readouterr().err
    bad = batch.args()
    bad[7] = bad[7] + 1000
    with extattn.capture(tmp_path), refused(r"kv_indices\[0\]"):
        extattn.extend_attention(*bad)
    assert len(list(tmp_path.iterdir())) == 2
    with refused("directory: found .*, allowed a folder that exists"), extattn.capture(tmp_path / "not_there"):
        pass
    extattn.extend_attention(*batch.args())
    assert len(list(tmp_path.iterdir())) == 2


def test_a_captured_call_replays_to_the_same_bits(tmp_path):
    """Python's call, written as a case and run by the command: C's call of the same case."""
    command = os.environ.get("EXTATTN_COMMAND")
    if not command:
        pytest.skip("EXTATTN_COMMAND is not set: no command to replay with")
    for seed in range(6):
        batch = Batch(seed, page_size=1 + seed % 3 * 3, dim=32 + 8 * seed, dtype=(np.float32, np.float16)[seed % 2])
        for old in tmp_path.iterdir():
            old.unlink()
        with extattn.capture(tmp_path, call=1):
            out, lse = extattn.extend_attention(*batch.args(), return_lse=True, logit_cap=3.0 * (seed % 2))
        (case,) = tmp_path.iterdir()
        result = tmp_path / "out.safetensors"
        subprocess.run([command, "run", case, "-o", result, "--device", "cpu"], check=True)
        names = read_safetensors(result)
        assert names["out"] == out.tobytes()
        assert names["lse"] == lse.tobytes()


def read_safetensors(path):
    import json

    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    body = data[8 + size :]
    return {name: body[slice(*entry["data_offsets"])] for name, entry in header.items()}


class OnlyDlpack:
    """An array of a framework that nobody knows."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **kwargs):
        return self.array.__dlpack__(**kwargs)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_dlpack(batch):
    wanted = extattn.extend_attention(*batch.args())
    out = np.empty_like(wanted)
    extattn.extend_attention(*batch.args(OnlyDlpack), out=OnlyDlpack(out))
    assert (out == wanted).all()
    with refused("out: found None, allowed an array to write to"):
        extattn.extend_attention(*batch.args(OnlyDlpack))


def test_many_threads(batch):
    """Each thread packs its calls into a buffer of its own."""
    from concurrent.futures import ThreadPoolExecutor

    batches = [Batch(seed, dim=16 + 8 * (seed % 3)) for seed in range(8)]
    wanted = [extattn.extend_attention(*b.args()) for b in batches]

    def work(i):
        return all((extattn.extend_attention(*batches[i].args()) == wanted[i]).all() for _ in range(50))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


def test_the_library_alone(tmp_path):
    """Importing the package imports neither numpy nor torch."""
    code = "import sys, extattn; assert not {'numpy', 'torch'} & set(sys.modules), sorted(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)


def test_a_library_that_is_not_there(tmp_path):
    environment = {**os.environ, "EXTATTN_LIBRARY": str(tmp_path / "none.so")}
    done = subprocess.run(
        [sys.executable, "-c", "import extattn"], capture_output=True, text=True, env=environment, cwd=tmp_path
    )
    assert done.returncode == 1
    assert "ImportError: extattn: cannot load the library" in done.stderr
