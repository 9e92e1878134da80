"""What arguments may be: numbers, switches, arrays to write to, and what is refused with the argument's name."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from conftest import Batch, attention, check_close

import extattn

NAMES = ("q", "k", "v", "k_cache", "v_cache", "qo_indptr", "kv_indptr", "kv_indices")
SHAPE = {"num_q_heads": 4, "num_kv_heads": 2, "head_dim": 32}


def refused(message, error=extattn.InvalidError):
    return pytest.raises(error, match="^" + message)


def call(batch, **changes):
    """The call with some arguments changed; a refusal leaves the results as they were."""
    given = {"out": np.full((*batch.q.shape[:2], batch.v.shape[2]), 7.0, np.float32), **changes}
    before = {name: given[name].tobytes() for name in ("out", "lse") if isinstance(given.get(name), np.ndarray)}
    try:
        return extattn.extend_attention(**{**dict(zip(NAMES, batch.args())), **given})
    except Exception as error:
        assert "\n" not in str(error)
        assert {name: given[name].tobytes() for name in before} == before, "a result was written"
        raise


# ---- numbers and switches ------------------------------------------------------------------------

SCALES = ("softmax_scale", "logit_cap", "k_scale", "v_scale")
BOOLEANS = ("causal", "skip_prefix_custom_mask", "skip_prefix", "skip_extend")
INTEGERS = ("window_left", "xai_temperature_len", "stages")


@pytest.mark.parametrize("name", SCALES)
@pytest.mark.parametrize(
    "value",
    [np.array(0.5), np.array([0.5], np.float32), np.full((), 0.5, np.float32), [0.5], "0.5", True, 1j,
     np.bool_(True), 10**400],
    ids=repr,
)  # fmt: skip
def test_scales_are_numbers(batch, name, value):
    with refused(f"{name}: found .*, allowed "):
        call(batch, **{name: value})
    with refused(f"{name}: found .*, allowed "):
        extattn.plan(**SHAPE, **{name: value})


def test_a_scale_that_changes_in_place_is_refused_both_times(batch):
    scale = np.full((), 0.5, np.float32)
    for value in (0.5, 2.0):
        scale.fill(value)
        with refused(r"k_scale: found numpy\.ndarray, allowed a number"):
            call(batch, k_scale=scale)


@pytest.mark.parametrize("value", [2, np.float32(2), np.float64(2), np.float16(2), np.int64(2)], ids=repr)
@pytest.mark.parametrize("name", SCALES)
def test_numbers_of_numpys_are_numbers(batch, name, value):
    assert (call(batch, **{name: value}) == call(batch, **{name: 2.0})).all()
    extattn.plan(**SHAPE, **{name: value})


def test_a_scale_of_none_is_one(batch):
    assert (call(batch, k_scale=None, v_scale=None, softmax_scale=None) == call(batch)).all()
    extattn.plan(**SHAPE, k_scale=None, v_scale=None)


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize(
    "value", [1.9, 4.0, "3", None, True, np.float32(3), np.array(3), [3], 2**32 + 1, 2**64 + 4, -(2**40), 10**5000],
    ids=lambda x: str(x)[:12] if not isinstance(x, int) else f"bits{x.bit_length()}",
)  # fmt: skip
def test_integers_are_whole_and_in_range(batch, name, value):
    if name == "xai_temperature_len" and isinstance(value, int) and 1 < value < 2**63:
        return  # it has 64 bits
    with refused(f"{name}: found .*, allowed "):
        call(batch, **{name: value})
    with refused(f"{name}: found .*, allowed "):
        extattn.plan(**SHAPE, **{name: value})


def test_integers_do_not_wrap(batch):
    """2^32 + 1 was a window of 1; a length of 64 bits is one."""
    with refused("window_left: found 4294967297, allowed -1 to 2147483647"):
        call(batch, window_left=2**32 + 1)
    assert (call(batch, xai_temperature_len=2**40) == call(batch)).all()


@pytest.mark.parametrize("kind", [np.int8, np.int64, np.uint32])
def test_integers_of_numpys_are_integers(batch, kind):
    assert (call(batch, window_left=kind(4)) == call(batch, window_left=4)).all()
    check_close(call(batch, window_left=kind(4)), attention(batch, window=4)[0])


@pytest.mark.parametrize("name", [*BOOLEANS, "return_lse", "validate"])
@pytest.mark.parametrize("value", ["no", 0, 1, 1.0, None, [], np.int64(1), np.array(True)], ids=repr)
def test_booleans_are_real_ones(batch, name, value):
    call(batch, **{name: True})  # to a dictionary of Python's, 1 is the same
    call(batch, **{name: False})
    with refused(f"{name}: found .*, allowed True or False"):
        call(batch, **{name: value})
    if name in BOOLEANS:
        with refused(f"{name}: found .*, allowed True or False"):
            extattn.plan(**SHAPE, **{name: value})


def test_booleans_of_numpys_are_booleans(batch):
    assert (call(batch, causal=np.bool_(False)) == call(batch, causal=False)).all()
    out, lse = call(batch, return_lse=np.bool_(True), validate=np.bool_(True))
    assert lse.shape == out.shape[:2]


@pytest.mark.parametrize("value", ["", "fast", 3, [], b"cpu"], ids=repr)
def test_families_are_names(batch, value):
    with refused("family: found .*, allowed "):
        call(batch, family=value)
    with refused("family: found .*, allowed "):
        extattn.plan(**SHAPE, family=value)


@pytest.mark.parametrize("value", [0, 5, -1, 2**64, 1.5, "0", True, object()], ids=str)
def test_a_stream_is_for_a_gpu(batch, value):
    with refused("stream: found .*, allowed "):
        call(batch, stream=value)
    part = np.zeros((3, 2, 8), np.float32), np.zeros((3, 2), np.float32)
    with refused("stream: found .*, allowed "):
        extattn.merge(*part, *part, stream=value)


@pytest.mark.parametrize("name", ["num_q_heads", "num_kv_heads", "head_dim", "head_dim_v", "page_size"])
@pytest.mark.parametrize("value", [2**40, 2**32 + 4, 1.9, "4", None, True, -1], ids=repr)
def test_plans_extents(name, value):
    with refused(f"{name}: found .*, allowed "):
        extattn.plan(**{**SHAPE, name: value})


@pytest.mark.parametrize("name", ["shared_kv", "has_sinks", "has_custom_mask"])
def test_plans_switches(name):
    for value in ("no", 1, None):
        with refused(f"{name}: found .*, allowed True or False"):
            extattn.plan(**SHAPE, **{name: value})


def test_plans_types_and_device():
    for name, allowed in (
        ("dtype", "f32, f16, bf16"),
        ("cache_dtype", "bf16, e4m3, e5m2"),
        ("index_dtype", "i32, i64"),
    ):
        with refused(f"{name}: found bool, allowed {allowed}, [a-z0-9_, ]*$"):
            extattn.plan(**SHAPE, **{name: "bool"})
    with refused("dtype: found i32, allowed f32"):
        extattn.plan(**SHAPE, dtype="i32")
    with refused("index_dtype: found float32, allowed i32, i64"):
        extattn.plan(**SHAPE, index_dtype=np.dtype("float32"))
    with refused("dtype: found 3, allowed f32"):
        extattn.plan(**SHAPE, dtype=3)
    for device in ("cuda:4294967296", "cuda:" + "9" * 5000):
        with refused("device: found .*, allowed 0 to 2147483647"):
            extattn.plan(**SHAPE, device=device)


@pytest.mark.parametrize(
    "options",
    [{"call": 1.5}, {"call": "3"}, {"call": True}, {"call": 2**64 + 1}, {"call": -1}, {"slower_ms": "5"},
     {"slower_ms": np.array(5.0)}, {"slower_ms": True}, {"failing": "no"}, {"failing": 1}, {"max_files": 2**32 + 1},
     {"max_files": 1.9}, {"max_files": 0}],
    ids=str,
)  # fmt: skip
def test_captures_conditions(tmp_path, options):
    (name,) = options
    with refused(f"{name}: found .*, allowed "), extattn.capture(tmp_path, **options):
        pass


def test_captures_folder(tmp_path):
    (tmp_path / "a").mkdir()
    with refused("directory: found .*, allowed a path, which has no byte 0"):
        extattn.capture(f"{tmp_path}/a\0b", call=1)
    for folder in (3, None, ["a"]):
        with refused("directory: found .*, allowed a path"):
            extattn.capture(folder, call=1)


# ---- arrays that are written -----------------------------------------------------------------------


def read_only(x):
    y = x.copy()
    y.flags.writeable = False
    return y


def on_bytes(x):
    return np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape)  # the memory of an immutable object


class WithDlpack:
    """Another framework's array. Its DLPack may be one from before versions, which cannot say that it is read-only."""

    def __init__(self, array, versions=True):
        self.array, self.versions = array, versions
        if not versions:
            self.__cuda_array_interface__ = array.__array_interface__

    def __dlpack__(self, **kwargs):
        if self.versions:
            return self.array.__dlpack__(**kwargs)
        if "max_version" in kwargs:
            raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")
        address, shape = self.array.__array_interface__["data"][0], self.array.shape
        same = np.ctypeslib.as_array((ctypes.c_float * self.array.size).from_address(address)).reshape(shape)
        return same.__dlpack__(**kwargs)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


numpy_21 = pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.1.0", reason="numpy's DLPack has no versions")
KINDS = {
    "a flag": read_only,
    "bytes": on_bytes,
    "DLPack": lambda x: WithDlpack(read_only(x)),
    "DLPack without versions": lambda x: WithDlpack(read_only(x), versions=False),
}


@pytest.mark.parametrize("kind", [pytest.param(k, marks=numpy_21) if k == "DLPack" else k for k in KINDS])
@pytest.mark.parametrize("name", ["out", "lse"])
def test_read_only_results(batch, name, kind):
    sevens = {"out": np.full(batch.q.shape, 7.0, np.float32), "lse": np.full(batch.q.shape[:2], 7.0, np.float32)}
    result = KINDS[kind](sevens[name])
    with refused(f"{name}: found .* that is read-only, allowed an array that may be written"):
        call(batch, return_lse=True, **{name: result})
    parts = sevens["out"].copy(), sevens["lse"].copy()
    with refused(f"{name}: found .* that is read-only, allowed an array that may be written"):
        extattn.merge(*parts, *parts, **{name: result})
    assert (getattr(result, "array", result) == 7.0).all()


def test_a_read_only_file(batch, tmp_path):
    path = tmp_path / "out.bin"
    np.full(batch.q.shape, 7.0, np.float32).tofile(path)
    with refused(r"out: found numpy\.memmap that is read-only"):
        call(batch, out=np.memmap(path, np.float32, "r", shape=batch.q.shape))
    assert (np.fromfile(path, np.float32) == 7.0).all()


@numpy_21
def test_read_only_inputs_are_fine(batch):
    wanted = call(batch)
    for convert in (read_only, on_bytes):
        assert (extattn.extend_attention(*batch.args(convert)) == wanted).all()
    out = np.empty_like(wanted)
    extattn.extend_attention(*batch.args(lambda x: WithDlpack(read_only(x))), out=WithDlpack(out))
    assert (out == wanted).all()


# ---- latent attention, and no prefix ---------------------------------------------------------------


def latent():
    return Batch(kv_heads=1, dim=48, dim_v=48)


def test_v_without_v_cache_is_ks(batch):
    batch = latent()
    args = dict(zip(NAMES, batch.args()))
    wanted = extattn.extend_attention(**{**args, "v": 32, "v_cache": None})
    for v in (args["k"][..., :32], np.int64(32)):
        assert (extattn.extend_attention(**{**args, "v": v, "v_cache": None}) == wanted).all()
    for v in (
        batch.v[..., :32],  # other numbers
        args["k"][..., :32].copy(),
        args["k"][..., 1:33],
        args["k"][::-1, :, :32],
    ):
        with refused("v: found memory of its own without a v_cache, allowed k's first columns"):
            extattn.extend_attention(**{**args, "v": v, "v_cache": None})
    for v in (0, -1, 49, 2**32 + 32, True):
        with refused("v: found .*, allowed (1 to 48|an integer)"):
            extattn.extend_attention(**{**args, "v": v, "v_cache": None})
    for v in (None, "32", 3.5, [32]):
        with refused("v: found .* without a v_cache, allowed an array, or the width of its view of k"):
            extattn.extend_attention(**{**args, "v": v, "v_cache": None})
    for v in (args["k"][:3], args["k"][:, 0], args["k"][..., :0], np.zeros(()), args["k"].reshape(-1)):
        with refused("v: found shape .*, allowed "):
            extattn.extend_attention(**{**args, "v": v.astype(np.float32), "v_cache": None})
    with refused("v: found an array where k and v_cache are None"):
        extattn.extend_attention(**{**args, "k": None, "v_cache": None, "skip_extend": True})
    half = extattn.extend_attention(**{**args, "k": None, "v": 32, "v_cache": None, "skip_extend": True})
    assert (half == extattn.extend_attention(**{**args, "v": 32, "v_cache": None, "skip_extend": True})).all()


def test_v_without_v_cache_in_an_empty_batch():
    batch = Batch(prefix=(), extend=(), kv_heads=1)
    args = dict(zip(NAMES, batch.args()))
    assert extattn.extend_attention(**{**args, "v": args["k"][..., :16], "v_cache": None}).shape == (0, 4, 16)


@pytest.mark.parametrize("dim_v", [32, 24])
def test_no_caches_where_there_is_no_prefix(dim_v):
    batch = Batch(prefix=(0, 0, 0), dim_v=dim_v)
    wanted = call(batch, return_lse=True)
    args = dict(zip(NAMES, batch.args()))
    found = extattn.extend_attention(**{**args, "k_cache": None, "v_cache": None}, return_lse=True)
    assert all((x == y).all() for x, y in zip(found, wanted))
    by_width = extattn.extend_attention(**{**args, "v": dim_v, "k_cache": None, "v_cache": None})
    of_views = extattn.extend_attention(**{**args, "v": args["k"][..., :dim_v], "k_cache": None, "v_cache": None})
    assert (by_width == of_views).all()
    with refused("v_cache: found an array where k_cache is None, allowed None"):
        extattn.extend_attention(**{**args, "k_cache": None})
    with refused("k: found None where k_cache is None"):
        extattn.extend_attention(**{**args, "k": None, "k_cache": None, "v_cache": None}, skip_extend=True)
    prefixed = dict(zip(NAMES, Batch(dim_v=dim_v).args()))
    with refused(r"k_cache\.data: found NULL, allowed memory as kv_indptr\[3\] says 22 prefix tokens"):
        extattn.extend_attention(**{**prefixed, "k_cache": None, "v_cache": None})


# ---- arrays that are none, or not what is wanted ---------------------------------------------------

ARRAYS = (*NAMES, "custom_mask", "mask_indptr", "window_kv_offsets", "sinks", "out", "lse")


def arrays_of(batch):
    size = int((batch.extend * (batch.prefix + batch.extend)).sum())
    return {
        "custom_mask": np.ones(size, bool),
        "mask_indptr": np.zeros(3, np.int32),
        "window_kv_offsets": np.zeros(3, np.int32),
        "sinks": np.zeros(4, np.float32),
        "out": np.full(batch.q.shape, 7.0, np.float32),
        "lse": np.full(batch.q.shape[:2], 7.0, np.float32),
        **dict(zip(NAMES, batch.args())),
    }


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize(
    "value",
    [[1.0, 2.0], (), 3.5, "q", object(), np.zeros(()), np.float32(1), np.zeros((2, 2), complex), np.zeros(4, "M8[s]"),
     np.zeros((1,) * 6, np.float32)],
    ids=lambda x: type(x).__name__ + str(getattr(x, "dtype", "")) + str(getattr(x, "shape", "")),
)  # fmt: skip
def test_other_things_are_refused_by_name(batch, name, value):
    with refused(f"{name}: found "):
        call(batch, **{**arrays_of(batch), name: value})


@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("k_cache", "v_cache")])
def test_none_is_refused_by_name(batch, name):
    with refused(f"{name}: found None"):
        call(batch, **{**arrays_of(batch), name: None})


FLOATS = {"q": "bf16, f16, f32$", "k": "f32, as q$", "v": "f32, as q$", "k_cache": "f32, as q, or e4m3, e5m2$",
          "v_cache": "f32, as k_cache$", "out": "f32, as q$", "lse": "f32$", "sinks": "f32"}  # fmt: skip
INDICES = {"qo_indptr": "i32$", "kv_indptr": "i32$", "kv_indices": "i32, i64$", "mask_indptr": "i32, i64$",
           "window_kv_offsets": "i32$", "custom_mask": "bool, u8$"}  # fmt: skip


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("dtype", ["float64", "int16", "complex64"])
def test_the_types_that_are_listed_are_allowed_there(batch, name, dtype):
    arrays = arrays_of(batch)
    arrays[name] = arrays[name].astype(dtype)
    with refused(f"{name}: found type {dtype}, allowed {(FLOATS | INDICES)[name]}"):
        call(batch, **arrays)


def test_queries_are_floats(batch):
    with refused("q: found type i32, allowed bf16, f16, f32$"):
        call(batch, q=batch.q.astype(np.int32))


@pytest.mark.parametrize("name", [n for n in ARRAYS if n not in ("out", "lse")])
def test_arrays_that_were_broadcast_are_refused_by_name(batch, name):
    arrays = arrays_of(batch)
    arrays[name] = np.broadcast_to(arrays[name][:1], arrays[name].shape)
    with refused(f"{name}: found strides "):
        call(batch, **arrays)
    if arrays[name].ndim > 2:
        arrays[name] = np.broadcast_to(arrays_of(batch)[name][:, :1], arrays[name].shape)
        with refused(f"{name}: found strides "):
            call(batch, **arrays)


@pytest.mark.parametrize("name", ["q", "k", "v", "k_cache", "v_cache", "out", "lse"])
def test_arrays_that_run_backwards_are_refused_by_name(batch, name):
    arrays = arrays_of(batch)
    arrays[name] = arrays[name][::-1]
    with refused(f"{name}: found strides "):
        call(batch, **arrays)


def test_a_field_of_packed_records(batch):
    """Five bytes apart: no number of elements."""
    records = np.zeros(batch.k.shape, np.dtype([("x", np.float32), ("y", np.int8)]))
    records["x"] = batch.k
    with refused("k: found strides of .* bytes, allowed multiples of 4"):
        call(batch, k=records["x"])


def test_a_v_cache_of_pages_beside_a_k_cache_of_slots(batch):
    with refused(r"v_cache: found shape \[29, 3, 2, 32\], allowed \[29, 2\] and a head_dim_v, as k_cache"):
        call(batch, v_cache=np.stack([batch.v_cache] * 3, axis=1))


def test_merge_refuses_by_name():
    out, lse = np.zeros((3, 2, 8), np.float32), np.zeros((3, 2), np.float32)
    good = {"out_a": out, "lse_a": lse, "out_b": out.copy(), "lse_b": lse.copy(), "out": out.copy(), "lse": lse.copy()}
    for name in good:
        for value in ([1.0], 3.0, "x", np.zeros(()), good[name].astype(np.float64)):
            with refused(f"{name}: found "):
                extattn.merge(**{**good, name: value})
    for name in ("out_a", "lse_a", "out_b", "lse_b"):
        with refused(f"{name}: found None"):
            extattn.merge(**{**good, name: None})
        with refused(f"{name}: found strides "):
            extattn.merge(**{**good, name: np.broadcast_to(good[name][:1], good[name].shape)})
    with refused("out_a: found type float64, allowed bf16, f16, f32"):
        extattn.merge(**{**good, "out_a": out.astype(np.float64)})
    with refused("out_a: found type i32, allowed bf16, f16, f32"):
        extattn.merge(**{**good, "out_a": out.astype(np.int32)})


class Broken:
    """An array that does not let itself be looked at."""

    def __dlpack__(self, **kwargs):
        raise BufferError("not now")

    def __dlpack_device__(self):
        return 1, 0


def test_what_dlpack_refuses_is_said_by_name(batch):
    with refused(r"q: found test_arguments\.Broken \(not now\), allowed an array that DLPack can hand over"):
        call(batch, q=Broken())
