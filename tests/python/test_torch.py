"""torch tensors: the call, the operator under torch.compile, and all of it without copies."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed; make test-python-torch installs it")

from conftest import Batch, attention, check_close  # noqa: E402

import extattn  # noqa: E402
import extattn.torch  # noqa: E402


def tensors(batch, dtype=None, cache_dtype=None):
    args = batch.args(torch.from_numpy)
    if dtype is not None:
        args[:5] = [x.to(dtype) for x in args[:5]]
    if cache_dtype is not None:
        args[3:5] = [x.to(cache_dtype) for x in args[3:5]]
    return args


def rounded(batch, args):
    """The batch with what its tensors really hold."""
    for name, tensor in zip(("q", "k", "v", "k_cache", "v_cache"), args):
        setattr(batch, name, tensor.to(torch.float32).numpy())
    return batch


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.float16, 5e-4), (torch.bfloat16, 3e-3)])
def test_types(dtype, bound):
    batch = Batch(dim=64, page_size=4)
    args = tensors(batch, dtype)
    out, lse = extattn.extend_attention(*args, return_lse=True)
    assert out.dtype is dtype
    assert lse.dtype is torch.float32
    wanted, wanted_lse = attention(rounded(batch, args))
    check_close(out.to(torch.float64), wanted, bound)
    check_close(lse, wanted_lse, bound)


@pytest.mark.parametrize("cache", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_8_bit_caches(cache):
    batch = Batch(dim=64)
    args = tensors(batch, torch.bfloat16, cache)
    out = extattn.extend_attention(*args, k_scale=0.5, v_scale=2.0)
    check_close(out.to(torch.float64), attention(rounded(batch, args), k_scale=0.5, v_scale=2.0)[0], 3e-3)


def test_same_bits_as_numpy(batch):
    wanted = extattn.extend_attention(*batch.args())
    assert (extattn.extend_attention(*tensors(batch)).numpy() == wanted).all()


def test_parameters_and_subclasses(batch):
    args = tensors(batch)
    wanted = extattn.extend_attention(*args)
    args[0] = torch.nn.Parameter(args[0], requires_grad=False)
    assert torch.equal(extattn.extend_attention(*args), wanted)
    args[0].requires_grad_()
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert torch.equal(extattn.extend_attention(*args), wanted)


NAMES = ("q", "k", "v", "k_cache", "v_cache", "qo_indptr", "kv_indptr", "kv_indices", "out", "lse", "sinks")


def named(batch):
    args = dict(zip(NAMES, tensors(batch)))
    return {**args, "out": torch.zeros(8, 4, 32), "lse": torch.zeros(8, 4), "sinks": torch.zeros(4)}


def refused(message):
    return pytest.raises(extattn.InvalidError, match="^" + message)


@pytest.mark.parametrize("name", [name for name in NAMES if name[-2:] not in ("tr", "es")])
def test_a_gradient_that_would_be_lost_is_refused(batch, name):
    args = named(batch)
    extattn.extend_attention(**args)
    args[name].requires_grad_()
    message = rf"{name}: found a tensor that requires grad, .*, allowed {name}\.detach\(\)"
    for _ in range(2):
        with refused(message):
            extattn.extend_attention(**args)
        with refused(message):
            torch.ops.extattn.extend_attention_out(**args)
    with torch.no_grad():
        extattn.extend_attention(**args)
        torch.ops.extattn.extend_attention_out(**args)
    extattn.extend_attention(**{**args, name: args[name].detach()})
    args.pop("out"), args.pop("lse")
    if name in args:
        with refused(message):
            torch.ops.extattn.extend_attention(**args)


def test_a_gradient_that_a_merge_would_lose_is_refused():
    parts = {name: torch.zeros(3, 2, 8) for name in ("out_a", "out_b", "out")}
    parts.update({name: torch.zeros(3, 2) for name in ("lse_a", "lse_b", "lse")})
    for name in parts:
        given = {**parts, name: parts[name].clone().requires_grad_()}
        with refused(f"{name}: found a tensor that requires grad"):
            extattn.merge(**given)
        with refused(f"{name}: found a tensor that requires grad"):
            torch.ops.extattn.merge_out(**given)
        with torch.no_grad():
            extattn.merge(**given)


@pytest.mark.parametrize("name", NAMES)
def test_a_tensor_elsewhere_is_refused(batch, name):
    args = named(batch)
    for _ in range(2):
        with refused(f"{name}: found on meta, allowed cpu, cuda"):
            extattn.extend_attention(**{**args, name: args[name].to("meta")})
        with refused(f"{name}: found .*, allowed a tensor with memory and strides"):
            extattn.extend_attention(**{**args, name: args[name].to_sparse()})
        extattn.extend_attention(**args)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("out", "lse")])
def test_what_is_no_tensor_is_refused_by_name(batch, name):
    args = named(batch)
    for value in ([1.0], 3.5, args[name].numpy(), "x"):
        with refused(rf"{name}: found .*, allowed torch\.Tensor, as q" if name != "q" else "(q|k_cache): found "):
            extattn.extend_attention(**{**args, name: value})


@pytest.mark.parametrize("name", ["softmax_scale", "logit_cap", "k_scale", "v_scale"])
def test_scales_that_are_tensors_are_refused(batch, name):
    """Their value is read where the plan is made, so a change in place was not seen."""
    args = tensors(batch)
    scale = torch.tensor(0.5)
    for value in (0.5, 2.0):
        extattn.extend_attention(*args, **{name: value})
        scale.fill_(value)
        with refused(rf"{name}: found torch\.Tensor, allowed a number"):
            extattn.extend_attention(*args, **{name: scale})
    with refused(rf"{name}: found torch\.Tensor, allowed a number"):
        torch.compile(lambda s: extattn.extend_attention(*args, **{name: s}), backend="eager")(scale)


@pytest.mark.parametrize("name", ["window_left", "xai_temperature_len", "stages"])
def test_integers_that_are_tensors_are_refused(batch, name):
    with refused(rf"{name}: found torch\.Tensor, allowed an integer"):
        extattn.extend_attention(*tensors(batch), **{name: torch.tensor(3)})


def test_the_operators_numbers(batch):
    """torch refuses what is no number; what would wrap comes here."""
    args = tensors(batch)
    with refused("window_left: found 4294967297, allowed -1 to 2147483647"):
        torch.ops.extattn.extend_attention(*args, window_left=2**32 + 1)
    for options in ({"window_left": 1.9}, {"causal": "no"}, {"stages": "3"}):
        with pytest.raises(RuntimeError, match=f"for argument '{next(iter(options))}'"):
            torch.ops.extattn.extend_attention(*args, **options)


def test_merge(batch):
    args = tensors(batch)
    whole, whole_lse = extattn.extend_attention(*args, return_lse=True)
    prefix = extattn.extend_attention(*args, skip_extend=True, return_lse=True)
    new = extattn.extend_attention(*args, skip_prefix=True, return_lse=True)
    out, lse = extattn.merge(*prefix, *new)
    torch.testing.assert_close(out, whole, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(lse, whole_lse, rtol=1e-5, atol=1e-6)
    op_out, op_lse = torch.ops.extattn.merge(*prefix, *new)
    assert torch.equal(op_out, out)
    assert torch.equal(op_lse, lse)


def test_operator(batch):
    args = tensors(batch)
    out, lse = torch.ops.extattn.extend_attention(*args, True, window_left=3)
    wanted = extattn.extend_attention(*args, window_left=3, return_lse=True)
    assert torch.equal(out, wanted[0])
    assert torch.equal(lse, wanted[1])
    _, nothing = torch.ops.extattn.extend_attention(*args)
    assert nothing.shape == (0,)
    into = torch.zeros_like(out)
    torch.ops.extattn.extend_attention_out(*args, into, window_left=3)
    assert torch.equal(into, out)


def test_fake_versions():
    """What torch checks of an operator: schema, fake version, and no hidden change of an input."""
    batch = Batch()
    args = tensors(batch)
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(torch.ops.extattn.extend_attention.default, (*args, True), test_utils=tests)
    torch.library.opcheck(torch.ops.extattn.extend_attention.default, tuple(args), test_utils=tests)
    out, lse = torch.zeros_like(args[0]), torch.zeros(8, 4)
    torch.library.opcheck(torch.ops.extattn.extend_attention_out.default, (*args, out, lse), test_utils=tests)
    parts = (out, lse, out.clone(), lse.clone())
    torch.library.opcheck(torch.ops.extattn.merge.default, parts, test_utils=tests)
    results = (out.clone(), lse.clone())
    torch.library.opcheck(torch.ops.extattn.merge_out.default, (*parts, *results), test_utils=tests)


def test_fake_versions_refuse_by_name():
    args = [x.to("meta") for x in tensors(Batch())]
    for i, name in ((0, "q"), (4, "v_cache")):
        for value in (args[i][0], args[i].reshape(-1)):
            with refused(f"{name}: found shape "):
                torch.ops.extattn.extend_attention(*args[:i], value, *args[i + 1 :])
    with refused("v: found None"):
        torch.ops.extattn.extend_attention(args[0], args[1], None, args[3], None, *args[5:])
    latent = torch.ops.extattn.extend_attention(*args[:2], args[1][..., :16], args[3], None, *args[5:])
    assert latent[0].shape == (8, 4, 16)
    out, lse = args[0], torch.zeros(8, 4, device="meta")
    assert torch.ops.extattn.merge(out, lse, out, lse)[0].shape == out.shape


BACKENDS = pytest.mark.parametrize("backend", ["eager", "aot_eager"])


def compiled(function, backend):
    torch.compiler.reset()
    return torch.compile(function, backend=backend, fullgraph=True)


@BACKENDS
@pytest.mark.parametrize("how", ["width", "view", "made"])
def test_compile_latent_attention(backend, how):
    batch = Batch(kv_heads=1, dim=48)
    q, k, _, k_cache, _, *indices = tensors(batch)

    def f(q, k, k_cache, *indices):
        if how == "made":
            k = k * 1.5
        return extattn.extend_attention(q * 2, k, 32 if how == "width" else k[..., :32], k_cache, None, *indices) + 1

    found = compiled(f, backend)(q, k, k_cache, *indices)
    assert torch.equal(found, f(q, k, k_cache, *indices))


@BACKENDS
def test_compile_without_caches(backend):
    args = tensors(Batch(prefix=(0, 0, 0)))

    def f(q, k, v, *indices):
        return extattn.extend_attention(q * 2, k, v, None, None, *indices) + 1

    wanted = extattn.extend_attention(args[0] * 2, *args[1:]) + 1
    assert torch.equal(compiled(f, backend)(*args[:3], *args[5:]), wanted)


@BACKENDS
@pytest.mark.parametrize("given", [(), ("out",), ("lse",), ("out", "lse"), ("in place",)], ids=str)
def test_compile_merge(batch, backend, given):
    args = tensors(batch)
    halves = [
        extattn.extend_attention(*args, **{skip: True}, return_lse=True) for skip in ("skip_prefix", "skip_extend")
    ]
    results = {"out": torch.zeros(8, 4, 32), "lse": torch.zeros(8, 4)}

    def f(out_a, lse_a, out_b, lse_b, results):
        if given == ("in place",):
            results = {"out": out_a, "lse": lse_a}
        out, lse = extattn.merge(out_a, lse_a, out_b, lse_b, **results)
        return out * 2, lse + 1, out_a + 0, results

    def inputs():
        parts = [x.clone() for half in halves for x in half]
        return *parts, {name: results[name].clone() for name in given if name in results}

    found, wanted = compiled(f, backend)(*inputs()), f(*inputs())
    for x, y in zip((*found[:3], *found[3].values()), (*wanted[:3], *wanted[3].values())):
        assert torch.equal(x, y)
    assert len(found[3]) == len(wanted[3])


def test_compile_refuses_what_a_call_refuses(batch):
    args = tensors(batch)
    for options in ({"window_left": 1.9}, {"causal": "no"}, {"window_left": 2**32 + 1}, {"stream": 0}, {"validate": 1}):
        torch.compiler.reset()
        with refused(f"{next(iter(options))}: found "):
            torch.compile(lambda q, o=options: extattn.extend_attention(q, *args[1:], **o), backend="eager")(args[0])
    torch.compiler.reset()
    q = args[0].clone().requires_grad_()
    with refused("q: found a tensor that requires grad"):
        torch.compile(lambda q: extattn.extend_attention(q * 2, *args[1:]), backend="aot_eager")(q)
    with torch.no_grad():
        found = compiled(lambda q: extattn.extend_attention(q * 2, *args[1:]), "aot_eager")(q)
    assert torch.equal(found, extattn.extend_attention(args[0] * 2, *args[1:]))


def test_compile_with_numbers_that_change(batch):
    args = tensors(batch)
    f = compiled(lambda q, w, s: extattn.extend_attention(q * 2, *args[1:], window_left=w, k_scale=s), "aot_eager")
    for w, s in ((1, 0.5), (2, 1.5), (3, 2.5), (4, None)):
        wanted = extattn.extend_attention(args[0] * 2, *args[1:], window_left=w, k_scale=s)
        assert torch.equal(f(args[0], w, s), wanted)


def test_compile():
    """One graph, without breaks: by the function and by the operator."""
    batch = Batch()
    args = tensors(batch)

    def f(q, *rest):
        out, lse = extattn.extend_attention(q * 2, *rest, return_lse=True, logit_cap=5.0)
        return out + 1, lse

    compiled = torch.compile(f, backend="eager", fullgraph=True)
    for found, wanted in zip(compiled(*args), f(*args)):
        assert torch.equal(found, wanted)

    def g(out, q, *rest):
        extattn.extend_attention(q, *rest, out=out)
        return out * 2

    compiled = torch.compile(g, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(torch.zeros_like(args[0]), *args), g(torch.zeros_like(args[0]), *args))


def test_no_copy_of_the_inputs():
    """A pool may be larger than memory has room for twice; only the result is made."""
    batch = Batch()
    args = tensors(batch)
    storages = {x.untyped_storage().data_ptr() for x in args}
    extattn.extend_attention(*args)
    assert storages == {x.untyped_storage().data_ptr() for x in args}
    out = torch.zeros(8, 4, 32)
    assert extattn.extend_attention(*args, out=out) is out
    np.testing.assert_array_equal(out.numpy(), extattn.extend_attention(*batch.args()))
