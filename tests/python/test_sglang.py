"""SGLang's functions: their meaning against the definition, with the options that SGLang's own kernel tests use,
and install() on modules that stand in for SGLang's."""

from __future__ import annotations

import logging
import sys
import types

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed; make test-python-torch installs it")

from conftest import Batch, attention, check_close  # noqa: E402

import extattn  # noqa: E402
import extattn.sglang as sgl  # noqa: E402


def bf16(batch):
    """SGLang's arguments up to kv_indices, without and with the output; the batch then holds what they do."""
    tensors = {}
    for name in ("q", "k", "v", "k_cache", "v_cache"):
        tensors[name] = (torch.from_numpy(getattr(batch, name)) * 0.2 + 0.1).to(torch.bfloat16)
        setattr(batch, name, tensors[name].to(torch.float32).numpy())
    out = torch.empty(*batch.q.shape[:2], batch.v.shape[2], dtype=torch.bfloat16)
    indices = [torch.from_numpy(getattr(batch, name)) for name in ("qo_indptr", "kv_indptr", "kv_indices")]
    args = [tensors["q"], tensors["k"], tensors["v"], out, tensors["k_cache"], tensors["v_cache"], *indices]
    return args, out


def fwd(args, custom_mask=None, is_causal=True, mask_indptr=None, k_scale=1.0, v_scale=1.0, **options):
    sgl.extend_attention_fwd(*args, custom_mask, is_causal, mask_indptr, 99, k_scale, v_scale, **options)


@pytest.mark.parametrize("dim", [256, 128, 96, 80, 13])
def test_head_dims(dim):
    batch = Batch(seed=dim, prefix=(50, 3, 129, 1), extend=(70, 130, 1, 64), q_heads=12, kv_heads=4, dim=dim)
    args, out = bf16(batch)
    fwd(args)
    wanted = attention(batch)[0]
    check_close(out.to(torch.float64), wanted, 3e-3)
    torch.testing.assert_close(out.to(torch.float64), torch.from_numpy(wanted), rtol=1e-2, atol=1e-3)

    # The causal rule as a custom mask gives the same bits.
    masks = [np.arange(p + e)[None] <= p + np.arange(e)[:, None] for p, e in zip(batch.prefix, batch.extend)]
    starts = torch.from_numpy(np.cumsum([0, *(m.size for m in masks)]))
    masked = torch.empty_like(out)
    args[3] = masked
    fwd(args, torch.from_numpy(np.concatenate([m.ravel() for m in masks])), True, starts)
    assert torch.equal(masked, out)


@pytest.mark.parametrize("window", [-1, 127])
def test_sliding_window(window):
    batch = Batch(prefix=(300, 10), extend=(200, 30), q_heads=16, kv_heads=2, dim=128)
    args, out = bf16(batch)
    fwd(args, sliding_window_size=window)
    torch.testing.assert_close(
        out.to(torch.float64), torch.from_numpy(attention(batch, window=window)[0]), rtol=1e-2, atol=1e-3
    )


def test_options():
    batch = Batch(dim=64)
    sinks = torch.tensor([0.5, -1.0, 2.0, 0.0], dtype=torch.bfloat16)
    for options, meaning in (
        ({"sm_scale": 0.2, "logit_cap": 1.5}, {"scale": 0.2, "cap": 1.5}),
        ({"sinks": sinks}, {"sinks": sinks.float().numpy()}),
        ({"sinks": sinks.to(torch.float64)}, {"sinks": sinks.float().numpy()}),
        ({"xai_temperature_len": 4}, {"xai": 4}),
        ({"is_causal": False}, {"causal": False}),
        ({"k_scale": 2.0, "v_scale": 0.5}, {"k_scale": 2.0, "v_scale": 0.5}),
        ({"skip_prefix": True}, {"skip_prefix": True}),
        ({"skip_extend": True}, {"skip_extend": True}),
    ):
        args, out = bf16(batch)
        lse = torch.empty(out.shape[:2])
        fwd(args, lse_extend=lse, **options)
        wanted, wanted_lse = attention(batch, **meaning)
        check_close(out.to(torch.float64), wanted, 3e-3)
        check_close(lse, wanted_lse, 1e-3)


def test_skip_extend_takes_empty_keys():
    batch = Batch(dim=64)
    args, out = bf16(batch)
    args[1], args[2] = args[1][:0], args[2][:0]
    fwd(args, is_causal=False, skip_extend=True)
    check_close(out.to(torch.float64), attention(batch, skip_extend=True)[0], 3e-3)


def test_pools_of_three_and_four_dimensions():
    """Slots counted through, one slot a page, and pages: the same bytes, the same bits."""
    batch = Batch(dim=32, page_size=4)
    args, out = bf16(batch)
    fwd(args, page_size=4)
    first = out.clone()
    pages = args[4:6]
    args[4:6] = [x.reshape(-1, 2, 32) for x in pages]
    fwd(args, page_size=4)
    assert torch.equal(out, first)
    args[4:6] = [x.reshape(-1, 1, 2, 32) for x in pages]
    fwd(args, page_size=1)
    assert torch.equal(out, first)


def test_densely_packed_prefixes():
    batch = Batch(dim=32)
    args, out = bf16(batch)
    args[8] = torch.arange(22, dtype=torch.int64)
    fwd(args)
    first = out.clone()
    args[8] = torch.zeros(1, dtype=torch.int64)
    fwd(args, identity_kv_indices=True)
    assert torch.equal(out, first)


def test_int64_indptr():
    batch = Batch(dim=32)
    args, out = bf16(batch)
    fwd(args)
    first = out.clone()
    args[6:8] = [x.to(torch.int64) for x in args[6:8]]
    fwd(args)
    assert torch.equal(out, first)


def unified_of(batch, pool_extra=0):
    """The new tokens put into the pool, and all slots of a sequence in one list, by the functions under test."""
    tokens, slots = len(batch.q), batch.k_cache.shape[0]
    batch.k_cache = np.concatenate([batch.k_cache, batch.k])
    batch.v_cache = np.concatenate([batch.v_cache, batch.v])
    args, out = bf16(batch)
    args[1], args[2] = args[4][slots:].clone(), args[5][slots:].clone()
    batch.k, batch.v = args[1].float().numpy(), args[2].float().numpy()
    lens = torch.from_numpy(batch.extend.astype(np.int32))
    new = torch.arange(slots, slots + tokens, dtype=torch.int64)
    unified = sgl.build_unified_kv_indices(args[7], args[8], args[6][:-1], lens, new, len(lens))
    return args, out, unified


def unified_fwd(args, unified, out, k_scale=1.0, v_scale=1.0, **options):
    indptr, indices, prefix_lens = unified
    sgl.extend_attention_fwd_unified(
        args[0], out, args[4], args[5], k_scale, v_scale, args[6], indptr, indices, prefix_lens.to(torch.int32), 99,
        **options,
    )  # fmt: skip


def test_build_unified_kv_indices():
    prefix, extend = [10, 0, 15, 25], [5, 3, 7, 4]
    indptr = torch.from_numpy(np.cumsum([0, *prefix]).astype(np.int32))
    slots, new = torch.randperm(50), torch.arange(100, 119)
    starts = torch.from_numpy(np.cumsum([0, *extend])[:-1].astype(np.int32))
    lens = torch.tensor(extend, dtype=torch.int32)
    for a, b in ((slots, new), (slots.to(torch.int32), new)):
        unified_indptr, unified, prefix_lens = sgl.build_unified_kv_indices(indptr, a, starts, lens, b, 4)
        assert unified_indptr.tolist() == np.cumsum([0, *np.add(prefix, extend)]).tolist()
        assert prefix_lens.tolist() == prefix
        assert unified.dtype is torch.int64
        wanted = []
        for i in range(4):
            wanted += slots[indptr[i] : indptr[i + 1]].tolist() + new[starts[i] : starts[i] + extend[i]].tolist()
        assert unified.tolist() == wanted
    # Longer arrays than are used, as in a batch of a CUDA graph: what follows does not matter.
    long = torch.cat([slots, torch.full((9,), 7)])
    assert sgl.build_unified_kv_indices(indptr, long, starts, lens, new, 4)[1].tolist()[:69] == wanted
    none = torch.zeros(1, dtype=torch.int32)
    assert sgl.build_unified_kv_indices(none, new[:0], none[:0], none[:0], new[:0], 0)[0].tolist() == [0]


@pytest.mark.parametrize(("prefix", "extend"), [((40, 3, 90), (50, 20, 1)), ((0, 0), (3, 4)), ((9,), (1,))])
@pytest.mark.parametrize("options", [{}, {"logit_cap": 2.0}, {"sliding_window_size": 13}, {"is_causal": False}])
def test_unified_is_regular(prefix, extend, options):
    """Bit for bit: where the prefix ends does not change the order of sums."""
    batch = Batch(prefix=prefix, extend=extend, q_heads=8, kv_heads=2, dim=80)
    args, out, unified = unified_of(batch)
    fwd(args, **options)
    found = torch.empty_like(out)
    unified_fwd(args, unified, found, window_start_pos=torch.ones(len(prefix), dtype=torch.int32), **options)
    assert torch.equal(found, out)


def test_unified_scales_all_keys():
    batch = Batch(dim=64)
    args, out, unified = unified_of(batch)
    unified_fwd(args, unified, out, 2.0, 0.5)
    batch.k, batch.v = batch.k * 2.0, batch.v * 0.5
    check_close(out.to(torch.float64), attention(batch, k_scale=2.0, v_scale=0.5)[0], 3e-3)


def test_unified_custom_mask_covers_the_prefix():
    batch = Batch(dim=64)
    args, out, unified = unified_of(batch)
    rng = np.random.default_rng(1)
    masks = [rng.random((e, p + e)) < 0.7 for p, e in zip(batch.prefix, batch.extend)]
    starts = torch.from_numpy(np.cumsum([0, *(m.size for m in masks)]))
    flat = torch.from_numpy(np.concatenate([m.ravel() for m in masks])).to(torch.uint8)
    unified_fwd(args, unified, out, custom_mask=flat, mask_indptr=starts)
    check_close(out.to(torch.float64), attention(batch, visible=lambda b: masks[b])[0], 3e-3)


@pytest.mark.parametrize("page_size", [1, 4])
def test_unified_8_bit_pools_and_pages(page_size):
    batch = Batch(dim=64, prefix=(5, 0, 15), extend=(3, 4, 1))
    args, out, unified = unified_of(batch)
    whole = args[4].shape[0] // page_size * page_size
    for i in (4, 5):
        args[i] = args[i].to(torch.float8_e4m3fn)
        padded = torch.zeros(whole + page_size, 2, 64, dtype=torch.uint8)
        padded[: args[i].shape[0]] = args[i].view(torch.uint8)
        args[i] = padded.view(torch.float8_e4m3fn).reshape(-1, page_size, 2, 64)
    unified_fwd(args, unified, out, page_size=page_size)
    keys, values = (args[i].float().numpy().reshape(-1, 2, 64) for i in (4, 5))
    new = slice(27, 35)  # read from the pool, in 8 bits as the prefix is
    batch.k_cache, batch.v_cache, batch.k, batch.v = keys, values, keys[new], values[new]
    check_close(out.to(torch.float64), attention(batch)[0], 3e-3)


def test_merge_state():
    batch = Batch(dim=64)
    whole, whole_lse = bf16(batch)[1], torch.empty(8, 4)
    args, _ = bf16(batch)
    args[3] = whole
    fwd(args, lse_extend=whole_lse)
    parts = []
    for skip in ("skip_extend", "skip_prefix"):
        args[3], lse = torch.empty_like(whole), torch.empty(8, 4)
        fwd(args, lse_extend=lse, **{skip: True})
        parts += [args[3], lse]
    out, lse = sgl.merge_state(*parts)
    torch.testing.assert_close(out, whole, rtol=2e-2, atol=2e-3)
    torch.testing.assert_close(lse, whole_lse, rtol=1e-5, atol=1e-5)
    into = torch.empty_like(out), torch.empty_like(lse)
    assert sgl.merge_state(*parts, *into)[0] is into[0]
    assert torch.equal(into[0], out)
    parts[1] = torch.full((8, 4), float("inf"))  # SGLang's other way to say "nothing seen"
    out, lse = sgl.merge_state(*parts)
    assert torch.equal(out, parts[2])
    assert torch.equal(lse, parts[3])


REFUSED = [
    ({"score_mod": lambda *_: None}, "score_mod: found a function"),
    ({"k_scale": torch.tensor(1.0)}, "k_scale: found a tensor"),
    ({"sliding_window_size": 5, "is_causal": False}, "sliding_window_size: found 5 without the causal rule"),
    ({"xai_temperature_len": 1}, "xai_temperature_len: found 1"),
    ({"page_size": 3}, "k_buffer: found 4 rows a page"),
    ({"k_scale": np.array(1.0)}, r"k_scale: found numpy\.ndarray, allowed a number"),
    ({"v_scale": "1"}, "v_scale: found '1'"),
    ({"sm_scale": torch.tensor(0.5)}, r"sm_scale: found torch\.Tensor, allowed a number"),
    ({"logit_cap": torch.tensor(5.0)}, r"logit_cap: found torch\.Tensor, allowed a number"),
    ({"logit_cap": "5"}, "logit_cap: found '5'"),
    ({"sliding_window_size": 1.9}, r"sliding_window_size: found 1\.9, allowed an integer"),
    ({"sliding_window_size": "3"}, "sliding_window_size: found '3', allowed an integer"),
    ({"sliding_window_size": torch.tensor(3)}, r"sliding_window_size: found torch\.Tensor, allowed an integer"),
    ({"sliding_window_size": 2**32 + 1}, "sliding_window_size: found 4294967297, allowed 0 to 2147483647"),
    ({"xai_temperature_len": 4.5}, r"xai_temperature_len: found 4\.5, allowed an integer"),
    ({"page_size": 4.0}, r"page_size: found 4\.0, allowed an integer"),
    ({"page_size": 2**40}, "page_size: found 1099511627776, allowed 1 to 2147483647"),
    ({"is_causal": "no"}, "is_causal: found 'no', allowed True or False"),
    ({"is_causal": torch.tensor(True)}, r"is_causal: found torch\.Tensor, allowed True or False"),
    ({"skip_prefix": 1}, "skip_prefix: found 1, allowed True or False"),
    ({"skip_extend": "no"}, "skip_extend: found 'no', allowed True or False"),
    ({"skip_prefix_custom_mask": None}, "skip_prefix_custom_mask: found None, allowed True or False"),
    ({"identity_kv_indices": 1}, "identity_kv_indices: found 1, allowed True or False"),
    ({"sinks": [0.0] * 4}, r"sinks: found list, allowed torch\.Tensor"),
    ({"custom_mask": [1]}, r"custom_mask: found list, allowed torch\.Tensor"),
    ({"lse_extend": np.zeros((8, 4))}, r"lse_extend: found numpy\.ndarray, allowed torch\.Tensor"),
]


@pytest.mark.parametrize(("options", "reason"), REFUSED, ids=[reason for _, reason in REFUSED])
def test_refusals(options, reason):
    args, out = bf16(Batch(dim=32, page_size=4))
    out.fill_(7)
    with pytest.raises(extattn.Error, match="^" + reason):
        fwd(args, **{"page_size": 4, **options})
    args[3] = torch.empty(out.shape, dtype=torch.float32)
    with pytest.raises(extattn.Error, match=r"^out: found type f32, allowed bf16"):
        fwd(args, page_size=4)
    assert (out == 7).all()


SGLANGS = ("q_extend", "k_extend", "v_extend", "o_extend", "k_buffer", "v_buffer", "qo_indptr", "kv_indptr",
           "kv_indices")  # fmt: skip


@pytest.mark.parametrize("at", range(len(SGLANGS)), ids=SGLANGS)
def test_what_is_no_tensor_is_refused_by_name(at):
    args, _ = bf16(Batch(dim=32))
    for value in ([1], None, 3.0, np.zeros(3)):
        with pytest.raises(extattn.InvalidError, match=f"^{SGLANGS[at]}: found .*, allowed torch.Tensor"):
            fwd([*args[:at], value, *args[at + 1 :]])


def test_refusals_of_the_unified_function():
    batch = Batch(dim=64)
    args, out, unified = unified_of(batch)
    for options, reason in REFUSED:
        name = next(iter(options))
        if name not in ("page_size", "xai_temperature_len", "skip_prefix", "skip_extend", "skip_prefix_custom_mask",
                        "identity_kv_indices", "lse_extend"):  # fmt: skip
            with pytest.raises(extattn.Error, match="^" + reason):
                unified_fwd(args, unified, out, **options)
    with pytest.raises(extattn.InvalidError, match=r"^page_size: found 1\.0, allowed an integer"):
        unified_fwd(args, unified, out, page_size=1.0)
    for i, name in enumerate(("kv_indptr", "kv_indices")):
        with pytest.raises(extattn.InvalidError, match=f"^{name}: found list, allowed torch.Tensor"):
            unified_fwd(args, (*unified[:i], [0], *unified[i + 1 :]), out)


@pytest.mark.parametrize("bs", [1.9, "3", True, -1, 4, 2**40, torch.tensor(3)], ids=str)
def test_batch_sizes_are_integers(bs):
    batch = Batch()
    args, _ = bf16(batch)
    lens = torch.from_numpy(batch.extend.astype(np.int32))
    with pytest.raises(extattn.InvalidError, match=r"^bs: found "):
        sgl.build_unified_kv_indices(args[7], args[8], args[6][:-1], lens, torch.arange(8), bs)


def test_merge_state_refuses_by_name():
    parts = {"prefix_output": torch.zeros(3, 2, 8), "prefix_lse": torch.zeros(3, 2),
             "suffix_output": torch.zeros(3, 2, 8), "suffix_lse": torch.zeros(3, 2)}  # fmt: skip
    for name in (*parts, "output", "output_lse"):
        with pytest.raises(extattn.InvalidError, match=f"^{name}: found list, allowed torch.Tensor"):
            sgl.merge_state(**{**parts, name: [1.0]})


@pytest.fixture
def fake_sglang(monkeypatch):
    """Modules under SGLang's names; what they are asked is kept."""
    calls = []

    def original(name):
        def function(*args, **kwargs):
            calls.append((name, args, kwargs))
            return name

        return function

    def module(name, **members):
        made = types.ModuleType(name)
        for key, value in members.items():
            setattr(made, key, value)
        monkeypatch.setitem(sys.modules, name, made)
        return made

    for package in ("sglang", "sglang.kernels", "sglang.kernels.ops", "sglang.kernels.ops.attention", "sglang.srt",
                    "sglang.srt.layers", "sglang.srt.layers.attention"):  # fmt: skip
        module(package, __path__=[])
    extend = module(
        "sglang.kernels.ops.attention.extend_attention",
        **{name: original(name) for name in ("extend_attention_fwd", "extend_attention_fwd_unified",
                                             "build_unified_kv_indices")},
    )  # fmt: skip
    merge = module("sglang.kernels.ops.attention.merge_state", merge_state_triton=original("merge_state_triton"))
    state = module(
        "sglang.srt.layers.attention.merge_state",
        merge_state=original("merge_state"),
        merge_state_triton=merge.merge_state_triton,
    )
    user = module("sglang.srt.layers.attention.somewhere", taken=extend.extend_attention_fwd)
    yield types.SimpleNamespace(extend=extend, merge=merge, state=state, user=user, calls=calls)
    sgl.uninstall()


def test_install_and_undo(fake_sglang):
    before = [dict(vars(m)) for m in (fake_sglang.extend, fake_sglang.merge, fake_sglang.state, fake_sglang.user)]
    replaced = sgl.install()
    assert "sglang.kernels.ops.attention.extend_attention.extend_attention_fwd" in replaced
    assert "sglang.srt.layers.attention.somewhere.taken" in replaced
    assert len(replaced) == len(set(replaced)) == 7
    assert sgl.install() == replaced
    args, out = bf16(Batch(dim=32))
    wanted = torch.empty_like(out)
    fwd([*args[:3], wanted, *args[4:]])
    for function in (fake_sglang.extend.extend_attention_fwd, fake_sglang.user.taken):
        out.fill_(0)
        function(*args, None, True, None, 99, 1.0, 1.0)
        assert torch.equal(out, wanted)
    assert not fake_sglang.calls
    sgl.uninstall()
    after = [dict(vars(m)) for m in (fake_sglang.extend, fake_sglang.merge, fake_sglang.state, fake_sglang.user)]
    assert after == before


def test_fallback_is_said_once(fake_sglang, caplog):
    sgl.install()
    args, _ = bf16(Batch(dim=32))
    with caplog.at_level(logging.WARNING, logger="extattn.sglang"):
        for _ in range(3):
            answer = fake_sglang.extend.extend_attention_fwd(*args, None, True, None, 99, 1.0, 1.0, score_mod=print)
            assert answer == "extend_attention_fwd"
        assert len(caplog.records) == 1
        assert (
            "extend_attention_fwd: SGLang's own is used, as extattn refuses score_mod: found a function" in caplog.text
        )
        # An argument of a later release, too.
        fake_sglang.extend.extend_attention_fwd(*args, None, True, None, 99, 1.0, 1.0, from_tomorrow=1)
        assert len(caplog.records) == 2
    assert [name for name, _, _ in fake_sglang.calls] == ["extend_attention_fwd"] * 4
    assert fake_sglang.calls[0][2] == {"score_mod": print}


def test_plugin(fake_sglang, monkeypatch):
    original = fake_sglang.extend.extend_attention_fwd
    monkeypatch.delenv("EXTATTN_SGLANG", raising=False)
    sgl.plugin()
    assert fake_sglang.extend.extend_attention_fwd is original
    monkeypatch.setenv("EXTATTN_SGLANG", "1")
    sgl.plugin()
    assert fake_sglang.extend.extend_attention_fwd is not original
    sgl.uninstall()
    assert fake_sglang.extend.extend_attention_fwd is original


def test_plugin_waits_for_the_import(fake_sglang, monkeypatch, tmp_path):
    """The modules are not imported by the plugin, and are seen to when SGLang does it."""
    name = "sglang.kernels.ops.attention.extend_attention"
    (tmp_path / "extend_attention.py").write_text("def extend_attention_fwd(*args, **kwargs):\n    return 'original'\n")
    monkeypatch.setattr(sys.modules["sglang.kernels.ops.attention"], "__path__", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, name)
    monkeypatch.setenv("EXTATTN_SGLANG", "1")
    meta_path = list(sys.meta_path)
    sgl.plugin()
    sgl.plugin()
    assert name not in sys.modules
    from sglang.kernels.ops.attention.extend_attention import extend_attention_fwd

    assert extend_attention_fwd.extattn_original() == "original"
    sgl.uninstall()
    assert sys.modules[name].extend_attention_fwd() == "original"
    assert sys.meta_path == meta_path
    monkeypatch.delitem(sys.modules, name)


def test_no_sglang(monkeypatch):
    monkeypatch.setitem(sys.modules, "sglang", None)
    with pytest.raises(ImportError, match="found no SGLang"):
        sgl.install()


@pytest.fixture
def half_sglang(monkeypatch, tmp_path):
    """A folder with SGLang's modules of the releases before its kernels moved, of which some raise when imported."""
    for name in [name for name in sys.modules if name.split(".")[0] == "sglang"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)

    def write(path, text):
        path = tmp_path / "sglang/srt/layers/attention" / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    yield write
    sgl.uninstall()
    for name in [name for name in sys.modules if name.split(".")[0] == "sglang"]:
        del sys.modules[name]


RAISES = {
    "KeyError: 'NOT_SET'": "import os\nos.environ.pop('NOT_SET')\n",
    "ModuleNotFoundError: No module named 'no_triton_here'": "import no_triton_here\n",
    "RuntimeError: no GPU": "raise RuntimeError('no GPU\\nsecond line')\n",
}


@pytest.mark.parametrize("reason", RAISES)
def test_an_sglang_that_does_not_import(half_sglang, reason):
    half_sglang("triton_ops/extend_attention.py", RAISES[reason])
    message = "extattn.sglang: found an SGLang that does not import (sglang.srt.layers.attention.triton_ops."
    with pytest.raises(ImportError) as raised:
        sgl.install()
    assert str(raised.value).startswith(f"{message}extend_attention: {reason}), allowed sglang 0.5.18 or later")


def test_an_sglang_of_which_half_imports(half_sglang, caplog):
    half_sglang("triton_ops/extend_attention.py", RAISES["KeyError: 'NOT_SET'"])
    half_sglang("triton_ops/merge_state.py", "def merge_state_triton(*args):\n    return 'original'\n")
    with caplog.at_level(logging.WARNING, logger="extattn.sglang"):
        assert sgl.install() == ["sglang.srt.layers.attention.triton_ops.merge_state.merge_state_triton"]
    assert "triton_ops.extend_attention: KeyError: 'NOT_SET'" in caplog.text
