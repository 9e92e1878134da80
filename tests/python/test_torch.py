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
    args[0] = torch.nn.Parameter(args[0])
    assert torch.equal(extattn.extend_attention(*args), wanted)


def test_a_tensor_elsewhere_is_refused(batch):
    args = tensors(batch)
    args[4] = args[4].to("meta")
    with pytest.raises(extattn.Error):
        extattn.extend_attention(*args)


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
    torch.library.opcheck(torch.ops.extattn.merge.default, (out, lse, out.clone(), lse.clone()), test_utils=tests)


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
