"""The short way of a call on torch tensors (python/look.c): the long way's results and refusals, and no others."""

from __future__ import annotations

import contextlib
import random
import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed; make test-python-torch installs it")

from conftest import Batch  # noqa: E402

import extattn  # noqa: E402
from extattn import _attention  # noqa: E402
from extattn._arrays import framework_of  # noqa: E402

if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
    pytest.skip(f"torch {torch.__version__} has no exchange of C functions", allow_module_level=True)

FRAMEWORK = framework_of(torch.zeros(1))
NAMES = ("q", "k", "v", "k_cache", "v_cache", "qo_indptr", "kv_indptr", "kv_indices", "sinks", "out", "lse")


def test_the_short_way_is_there():
    assert FRAMEWORK.look.functions is not None, "libextattn_look.so is not beside the library"


@contextlib.contextmanager
def the_long_way():
    kept, FRAMEWORK.look.functions = FRAMEWORK.look.functions, None
    try:
        yield
    finally:
        FRAMEWORK.look.functions = kept


@contextlib.contextmanager
def statuses():
    """What run() of look.c answers meanwhile: nothing where it was not come to."""
    look, workspace_bytes, run = kept = FRAMEWORK.look.functions
    answers = []

    def watched(*args):
        answers.append(run(*args))
        return answers[-1]

    FRAMEWORK.look.functions = (look, workspace_bytes, watched)
    try:
        yield answers
    finally:
        FRAMEWORK.look.functions = kept


def call(tensors, options):
    """extend_attention(**tensors, **options) in words or numbers."""
    for name in ("out", "lse"):
        with contextlib.suppress(Exception):  # not a tensor, or one that cannot be filled
            tensors[name].fill_(7)
    try:
        out, lse = extattn.extend_attention(**tensors, **options, return_lse=True)
        kinds = type(out), type(lse)
        out, lse = torch.as_tensor(out), torch.as_tensor(lse)
        return out.float().tolist(), lse.tolist(), out.stride(), lse.stride(), out.dtype, kinds
    except Exception as error:
        return type(error).__name__, str(error)


def short_and_long(tensors, options):
    short = call(tensors, options)
    with the_long_way():
        return short, call(tensors, options)


def tensors_of(batch, dtype=torch.float32, cache_dtype=None):
    found = dict(zip(NAMES, batch.args(torch.from_numpy)))
    for name in NAMES[:5]:
        found[name] = found[name].to(dtype)
    for name in ("k_cache", "v_cache"):
        found[name] = found[name].to(cache_dtype or dtype)
    return found


def with_results(tensors):
    """As views into something larger, whose other rows a call is not to touch."""
    tokens, heads, dim_v = *tensors["q"].shape[:2], tensors["v_cache"].shape[-1]
    tensors["out"] = torch.zeros(tokens, heads + 1, dim_v + 3, dtype=tensors["q"].dtype)[:, 1:, :dim_v]
    tensors["lse"] = torch.zeros(tokens, heads + 2)[:, :heads]
    return tensors


def latent(tensors):
    tensors["v"], tensors["v_cache"] = tensors["k"][..., :16], tensors["k_cache"][..., :16]
    return tensors


def interleaved(tensors):
    for names in (("k", "v"), ("k_cache", "v_cache")):
        both = torch.stack([tensors[name] for name in names], dim=-2)
        for i, name in enumerate(names):
            tensors[name] = both[..., i, :]
    return tensors


CALLS = {
    "plain": lambda: tensors_of(Batch()),
    "bf16, pages": lambda: tensors_of(Batch(page_size=4), torch.bfloat16),
    "f16, int64 slots": lambda: tensors_of(Batch(index=np.int64), torch.float16),
    "e4m3": lambda: tensors_of(Batch(), torch.bfloat16, torch.float8_e4m3fn),
    "e5m2": lambda: tensors_of(Batch(page_size=2), torch.float16, torch.float8_e5m2),
    "values narrower": lambda: tensors_of(Batch(dim_v=16)),
    "latent": lambda: latent(tensors_of(Batch(page_size=2))),
    "interleaved": lambda: interleaved(tensors_of(Batch())),
    "results given": lambda: with_results(tensors_of(Batch(), torch.bfloat16)),
    "sinks": lambda: {**tensors_of(Batch(), torch.bfloat16), "sinks": torch.arange(4.0)},
    "sinks as q": lambda: {**tensors_of(Batch(), torch.bfloat16), "sinks": torch.arange(4.0).to(torch.bfloat16)},
}
OPTIONS = [
    {},
    {"softmax_scale": 0.25, "logit_cap": 5.0},
    {"causal": False, "window_left": 3},
    {"skip_prefix": True},
    {"skip_extend": True, "k_scale": 0.5, "v_scale": 2.0},
    {"family": "reference", "xai_temperature_len": 4},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_results_are_those_of_the_long_way(name, options):
    tensors = CALLS[name]()
    call(tensors, options)  # the first call of its kind takes the long way
    with statuses() as answers:
        short, long = short_and_long(tensors, options)
    assert short == long
    assert isinstance(short[0], list), short
    assert answers == [0]


def test_a_plan_is_for_its_kind_of_call_only():
    """Calls of many kinds, one after another: no one gets another's plan."""
    kinds = [(name, options) for name in CALLS for options in OPTIONS]
    random.Random(1).shuffle(kinds)
    for name, options in kinds * 2:
        short, long = short_and_long(CALLS[name](), options)
        assert short == long, (name, options)


SPOILT = {
    "another type": lambda x: x.to(torch.float64),
    "float16": lambda x: x.to(torch.float16),
    "int64": lambda x: x.to(torch.int64),
    "a row less": lambda x: x[:-1],
    "a row more": lambda x: torch.cat([x, x[:1]]),
    "nothing": lambda x: x[:0],
    "a dimension more": lambda x: x.unsqueeze(0),
    "one dimension": lambda x: x.reshape(-1),
    "a last dimension with steps": lambda x: torch.stack([x, x], dim=-1)[..., 0],
    "half of the last dimension": lambda x: x[..., : x.shape[-1] // 2],
    "transposed": lambda x: x.transpose(0, -1),
    "broadcast": lambda x: x[:1].expand(x.shape),
    "one head": lambda x: x[:, :1] if x.dim() > 1 else x[:1],
    "other strides": lambda x: torch.cat([x, x], dim=1)[:, : x.shape[1]] if x.dim() > 1 else x,
    "numpy": lambda x: x.float().numpy(),
    "a list": lambda x: x.tolist(),
    "None": lambda x: None,
    "meta": lambda x: x.to("meta"),
    "sparse": lambda x: x.to_sparse(),
    "an address that is not aligned": lambda x: x.view(torch.uint8).reshape(-1)[1:].view(torch.int8),
    "a parameter": lambda x: torch.nn.Parameter(x, requires_grad=False),
    "wants a gradient": lambda x: x.clone().requires_grad_(x.is_floating_point()),
}


@pytest.mark.parametrize("spoilt", SPOILT)
@pytest.mark.parametrize("argument", NAMES)
def test_refusals_are_those_of_the_long_way(argument, spoilt):
    """And what is no reason to refuse is none here either."""
    for name in ("plain", "bf16, pages", "latent"):
        tensors = with_results(CALLS[name]())
        tensors["sinks"] = torch.arange(4.0)
        call(tensors, {})
        try:
            tensors[argument] = SPOILT[spoilt](tensors[argument])
        except Exception:
            continue  # there is no such tensor
        short, long = short_and_long(tensors, {})
        assert short == long, name
        assert FRAMEWORK.look.functions is not None


VALUES = [None, True, False, 0, 1, 2, -1, 4, 1.0, 2.0, 4.0, 0.0, -0.0, float("nan"), float("inf"), 1.9, "no", "cpu", "",
          "reference", [], {}, 2**31, 2**32 + 1, 2**63, 2**64 + 1, 10**400, np.float32(2), np.int64(2), np.bool_(True),
          np.array(2.0), np.array(2), torch.tensor(2.0), torch.tensor(2), torch.tensor(True), object]  # fmt: skip
CHANGED = ("causal", "softmax_scale", "logit_cap", "window_left", "skip_prefix_custom_mask", "k_scale", "v_scale",
           "xai_temperature_len", "skip_prefix", "skip_extend", "family", "stages", "stream", "validate")  # fmt: skip


@pytest.mark.parametrize("name", CHANGED)
def test_options_are_those_of_the_long_way(name):
    """Each value after each other, as some are equal to Python that are not the same: 1, 1.0 and True."""
    tensors = with_results(CALLS["plain"]())
    with the_long_way():
        wanted = [call(tensors, {name: value}) for value in VALUES]
    assert sum(isinstance(answer[0], list) for answer in wanted) >= 1
    for _ in range(2):
        for value, answer in zip(VALUES, wanted):
            assert repr(call(tensors, {name: value})) == repr(answer), value  # a NaN is itself there


def test_options_that_are_usual_take_the_short_way():
    tensors = CALLS["plain"]()
    for options in ({"logit_cap": 5}, {"k_scale": None, "v_scale": 2}, {"family": "reference"}, {"softmax_scale": 1},
                    {"window_left": 0, "stages": 0, "xai_temperature_len": 7}):  # fmt: skip
        call(tensors, options)
        with statuses() as answers:
            assert isinstance(call(tensors, options)[0], list)
        assert answers == [0], options


def test_gradients_are_refused_where_torch_would_want_them():
    tensors = CALLS["plain"]()
    tensors["k"].requires_grad_()
    with torch.no_grad():
        call(tensors, {})
        with statuses() as answers:
            assert isinstance(call(tensors, {})[0], list)
        assert answers == [0]
    short, long = short_and_long(tensors, {})
    assert short == long
    assert short[0] == "InvalidError"


@pytest.mark.parametrize("seed", range(100))
def test_several_things_wrong(seed):
    rng = random.Random(seed)
    tensors = with_results(CALLS[rng.choice(list(CALLS))]())
    call(tensors, {})
    for argument in rng.sample([name for name in NAMES if name in tensors], 2):
        with contextlib.suppress(Exception):
            tensors[argument] = SPOILT[rng.choice(list(SPOILT))](tensors[argument])
    short, long = short_and_long(tensors, {})
    assert short == long, f"seed {seed}"


def test_a_call_within_a_call(monkeypatch):
    """As a hook of the allocator might make one, between the look and the run."""
    outer, inner = tensors_of(Batch(seed=1)), tensors_of(Batch(seed=2))
    wanted, wanted_inner = call(outer, {}), call(inner, {})
    make, found = FRAMEWORK.empty_like, []

    def make_after_a_call(*args, **kwargs):
        if not found:
            found.append(None)
            found.append(call(inner, {}))
        return make(*args, **kwargs)

    monkeypatch.setattr(FRAMEWORK, "empty_like", make_after_a_call)
    assert call(outer, {}) == wanted
    assert found[1] == wanted_inner


def test_threads():
    """Each has its own place to look at things; what is found of a plan serves all."""
    kinds = [(CALLS[name](), options) for name in CALLS for options in OPTIONS[:3]]
    wanted = [call(tensors, options) for tensors, options in kinds]
    wrong = []

    def work(first):
        for i in range(3 * len(kinds)):
            at = (first + i) % len(kinds)
            tensors = {name: x.clone() if name in ("out", "lse") else x for name, x in kinds[at][0].items()}
            found = call(tensors, kinds[at][1])
            if found[:2] != wanted[at][:2]:
                wrong.append((at, found))

    threads = [threading.Thread(target=work, args=(7 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_plans_do_not_grow_without_end(monkeypatch):
    monkeypatch.setattr(_attention, "_MAX_PLANS", 8)
    _attention._plans.clear()
    tensors = CALLS["plain"]()
    for i in range(40):
        assert isinstance(call(tensors, {"k_scale": 1.0 + i})[0], list)
        assert len(_attention._plans) <= 8
