"""The structs of the package are those of the header: names, order, sizes and offsets, by the C compiler."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from extattn import _library

STRUCTS = {
    "ea_context_options": _library.ContextOptions,
    "ea_device_info": _library.DeviceInfo,
    "ea_problem": _library.Problem,
    "ea_plan_options": _library.PlanOptions,
    "ea_plan_info": _library.PlanInfo,
    "ea_capture_options": _library.CaptureOptions,
}
# The words of the packed structs, in order.
BATCH = """struct_size num_seqs num_tokens num_kv_indices num_pages
  q.data q.token_stride q.head_stride k.data k.token_stride k.head_stride v.data v.token_stride v.head_stride
  k_cache.data k_cache.page_stride k_cache.row_stride k_cache.head_stride
  v_cache.data v_cache.page_stride v_cache.row_stride v_cache.head_stride
  out.data out.token_stride out.head_stride lse lse_token_stride lse_head_stride qo_indptr kv_indptr kv_indices
  custom_mask custom_mask_bytes mask_indptr window_kv_offsets sinks qo_indptr_host kv_indptr_host""".split()


def test_structs(tmp_path):
    compiler = shutil.which("cc")
    if not compiler:
        pytest.skip("no C compiler")
    lines = []
    for name, struct in STRUCTS.items():
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        lines += [f'printf("{name}.{field[0]} %zu\\n", offsetof({name}, {field[0]}));' for field in struct._fields_]
    lines.append('printf("ea_batch %zu\\n", sizeof(ea_batch));')
    lines += [f'printf("ea_batch.{field} %zu\\n", offsetof(ea_batch, {field}));' for field in BATCH]
    lines.append('printf("ea_merge_args %zu\\n", sizeof(ea_merge_args));')
    source = tmp_path / "offsets.c"
    body = "\n".join(lines)
    source.write_text(f"#include <extattn.h>\n#include <stdio.h>\nint main(void) {{\n{body}\n}}\n")
    include = Path(os.environ.get("EXTATTN_SOURCE", Path(__file__).parents[2])) / "include"
    subprocess.run([compiler, f"-I{include}", source, "-o", tmp_path / "offsets"], check=True)
    found = subprocess.run([tmp_path / "offsets"], check=True, capture_output=True, text=True).stdout
    wanted = []
    for name, struct in STRUCTS.items():
        wanted.append(f"{name} {ctypes.sizeof(struct)}")
        wanted += [f"{name}.{field[0]} {getattr(struct, field[0]).offset}" for field in struct._fields_]
    wanted.append(f"ea_batch {_library.BATCH.size}")
    wanted += [f"ea_batch.{field} {8 * i}" for i, field in enumerate(BATCH)]
    wanted.append(f"ea_merge_args {_library.MERGE.size}")
    assert found.split("\n")[:-1] == wanted
