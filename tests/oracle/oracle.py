"""Extend attention in numpy, float64: an independent reading of what the library computes.

Written from the rules in include/extattn.h alone and sharing no code with the library, not
even the reader of safetensors. One query at a time, and only the keys that it sees are ever
touched, so a NaN elsewhere cannot matter.
"""

import json
import struct

import numpy as np


def e4m3_table():
    """OCP FP8 E4M3: bias 7, no Inf, all ones is NaN."""
    values = np.empty(256)
    for code in range(256):
        exponent, mantissa = code >> 3 & 15, code & 7
        size = mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
        if exponent == 15 and mantissa == 7:
            size = np.nan
        values[code] = -size if code & 128 else size
    return values


E4M3 = e4m3_table()
DECODERS = {
    "F32": lambda raw: np.frombuffer(raw, "<f4").astype(np.float64),
    "F16": lambda raw: np.frombuffer(raw, "<f2").astype(np.float64),
    "BF16": lambda raw: (np.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4").astype(np.float64),
    "F8_E4M3": lambda raw: E4M3[np.frombuffer(raw, np.uint8)],
    "F8_E5M2": lambda raw: (np.frombuffer(raw, np.uint8).astype("<u2") << 8).view("<f2").astype(np.float64),
    "I32": lambda raw: np.frombuffer(raw, "<i4").astype(np.int64),
    "I64": lambda raw: np.frombuffer(raw, "<i8"),
    "U8": lambda raw: np.frombuffer(raw, np.uint8),
    "BOOL": lambda raw: np.frombuffer(raw, np.uint8),
}


def read_safetensors(path):
    """The tensors of a file by name (numbers widened), their types, and the metadata."""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        data = file.read()
    metadata = header.pop("__metadata__", {})
    tensors, dtypes = {}, {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        tensors[name] = DECODERS[entry["dtype"]](data[begin:end]).reshape(entry["shape"])
        dtypes[name] = entry["dtype"]
    return tensors, dtypes, metadata


def options_of(metadata, head_dim):
    flag = {"true": True, "false": False}
    return {
        "softmax_scale": float(metadata.get("softmax_scale", 0)) or 1 / np.sqrt(head_dim),
        "causal": flag[metadata.get("causal", "true")],
        "window_left": int(metadata.get("window_left", -1)),
        "logit_cap": float(metadata.get("logit_cap", 0)),
        "xai_temperature_len": int(metadata.get("xai_temperature_len", -1)),
        "k_scale": float(metadata.get("k_scale", 1)),
        "v_scale": float(metadata.get("v_scale", 1)),
        "skip_prefix_custom_mask": flag[metadata.get("skip_prefix_custom_mask", "true")],
        "skip_prefix": flag[metadata.get("skip_prefix", "false")],
        "skip_extend": flag[metadata.get("skip_extend", "false")],
    }


def mask_of(case, options, b, P, E):
    """The custom mask of sequence b as [E, P+E] booleans, or None."""
    if "custom_mask" not in case:
        return None
    offset = 0
    if "window_kv_offsets" in case and options["window_left"] > 0:
        offset = case["window_kv_offsets"][b]
    start = case["mask_indptr"][b]
    flat = case["custom_mask"][start : start + E * (offset + P + E)]
    return flat.reshape(E, offset + P + E)[:, offset:] != 0


def visible_keys(options, mask, P, E, i):
    """Which of the keys 0 .. P+E-1 query i sees."""
    j = np.arange(P + E)
    if mask is not None:
        visible = mask[i].copy()
        if options["skip_prefix_custom_mask"]:
            visible[:P] = True
    elif options["causal"]:
        visible = (j < P) | (j - P <= i)
    else:
        visible = np.ones(P + E, bool)
    W = options["window_left"]
    if W > 0:
        visible &= P + i <= j + W
        if not options["causal"]:
            visible &= (j < P) | (j <= P + i + W)
    if options["skip_prefix"]:
        visible &= j >= P
    if options["skip_extend"]:
        visible &= j < P
    return np.flatnonzero(visible)


def attend_row(options, q, k, v, scales, sinks, position):
    """One query [Hq, D] over the keys [n, Hkv, D] and values [n, Hkv, Dv] that it sees."""
    group = q.shape[0] // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    s = options["softmax_scale"] * np.einsum("hd,nhd->hn", q, k) * scales["k"]
    if options["logit_cap"] > 0:
        s = options["logit_cap"] * np.tanh(s / options["logit_cap"])
    L = options["xai_temperature_len"]
    if L > 0 and position > L:
        s = s * (np.log2(position) / np.log2(L))
    top = s.max(axis=1) if sinks is None else np.maximum(s.max(axis=1), sinks)
    weights = np.exp(s - top[:, None])
    denominator = weights.sum(axis=1)
    if sinks is not None:
        denominator = denominator + np.exp(sinks - top)
    out = np.einsum("hn,nhd->hd", weights * scales["v"], v) / denominator[:, None]
    return out, top + np.log(denominator)


def attend(path):
    """out [T, Hq, Dv] and lse [T, Hq] of a case file in float64, and the type of q."""
    case, dtypes, metadata = read_safetensors(path)
    q, k, v = case["q"], case["k"], case["v"]
    options = options_of(metadata, q.shape[2])
    k_cache, v_cache = (case[name].reshape(-1, *case[name].shape[-2:]) for name in ("k_cache", "v_cache"))
    out = np.zeros((q.shape[0], q.shape[1], v.shape[2]))
    lse = np.full(q.shape[:2], -np.inf)
    for b in range(len(case["qo_indptr"]) - 1):
        first, last = case["qo_indptr"][b : b + 2]
        slots = case["kv_indices"][case["kv_indptr"][b] : case["kv_indptr"][b + 1]]
        P, E = len(slots), last - first
        keys = np.concatenate([k_cache[slots], k[first:last]])
        values = np.concatenate([v_cache[slots], v[first:last]])
        mask = mask_of(case, options, b, P, E)
        for i in range(E):
            seen = visible_keys(options, mask, P, E, i)
            if len(seen) == 0:
                continue
            scales = {part: np.where(seen < P, options[part + "_scale"], 1.0) for part in "kv"}
            out[first + i], lse[first + i] = attend_row(
                options, q[first + i], keys[seen], values[seen], scales, case.get("sinks"), P + i
            )
    return out, lse, dtypes["q"]
