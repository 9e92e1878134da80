#!/usr/bin/env python3
"""Draws the README's picture from the records under bench/results: ours and each peer as bars.

    scripts/bench_picture.py [--check] [README]

Writes docs/images/performance.svg, and between README's lines "<!-- picture:" and "<!-- end of picture -->"
what it shows, where we are behind, and the records that it rests on; --check only compares. Of each suite
the newest record beside peers is drawn, every shape of it, with all peers that it has: nothing is chosen by hand.
Plain SVG, so that the same records give the same bytes everywhere.
"""

import argparse
import os
import sys
from collections import namedtuple
from pathlib import Path
from xml.sax.saxutils import escape

import bench_table
from bench_table import ROOT, best_of, is_wide, rows_of, shape

BEGIN, END = "<!-- picture:", "<!-- end of picture -->"
IMAGE = Path("docs") / "images" / "performance.svg"

PANELS = {  # suite to title
    "seed": "No prefix, causal, 16k tokens",
    "prefix": "A prefix in shuffled single slots",
    "window": "Sliding window",
    "mla": "Latent attention",
}
# Which peers one bar stands for, and its name; the last letters are its class in the style below.
BARS = [
    (("extattn",), "extattn", "a"),
    (("fa3", "best fa3_vllm"), "FlashAttention-3", "b"),
    (("cudnn",), "cuDNN", "c"),
    (("fa2",), "FlashAttention-2", "d"),
    (("flashinfer",), "FlashInfer", "e"),
    (("best triton",), "SGLang's Triton, best depth", "f"),
]

WIDTH, LEFT, RIGHT, TOP = 960, 40, 8, 64
PLOT_HEIGHT, ROW_HEIGHT = 180, 276
PANEL_GAP, LEAST_BAR, MOST_BAR = 18, 15, 18
STEP = 200  # of the scale, TFLOP/s

STYLE = """
text { font-family: system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif; font-size: 11px; fill: #343a40 }
.title { font-size: 15px; font-weight: 600 } .panel { font-size: 12.5px; font-weight: 600 }
.group { text-anchor: middle; font-weight: 600 } .shape { text-anchor: middle; fill: #5c636a; font-size: 10px }
.value { text-anchor: middle; font-size: 8.5px; fill: #5c636a } .ours { fill: #c2410c; font-weight: 700 }
.scale { text-anchor: end; fill: #5c636a; font-size: 10px } .line { stroke: #e3e6ea } .base { stroke: #868e96 }
.paper { fill: #ffffff }
.a { fill: #ea580c } .b { fill: #495057 } .c { fill: #7b848c } .d { fill: #a5adb5 } .e { fill: #bfd0e0 } .f { fill: #d3d8dd }
@media (prefers-color-scheme: dark) {
text { fill: #e6e8ea } .paper { fill: #0d1117 } .line { stroke: #2a313a } .shape, .value, .scale { fill: #a5adb5 }
.ours { fill: #fb923c } .a { fill: #f97316 } .b { fill: #d3d8dd } .c { fill: #a5adb5 } .d { fill: #7b848c } .e { fill: #54708c } .f { fill: #4a525b }
}
"""

Group = namedtuple("Group", "case bars")  # bars: [(class, name, row)], ours first


def records(folder):
    """Suite to (record, path): the newest beside peers, all of the card of the newest one of the first suite."""
    found = {}
    for key, (_, _, _, path, record) in bench_table.newest_records(folder).items():
        if key[0] == "peers" and key[1] in PANELS:
            found.setdefault(key[1], {})[key[2]] = (record, path)
    if "seed" not in found:
        sys.exit(f"{folder}: found no record of the suite seed beside peers")
    device = max(found["seed"].values(), key=lambda entry: entry[0]["date"])[0]["device"]["name"]
    return {suite: found[suite][device] for suite in PANELS if device in found.get(suite, {})}


def group_of(case):
    rows = [(css, name, best_of([row for peer in peers for row in rows_of(case, peer)])) for peers, name, css in BARS]
    return Group(case["case"], [bar for bar in rows if bar[2] is not None])


def groups_of(record, suite):
    cases = [case for case in record["cases"] if case["suite"] == suite]
    return [group_of(case) for case in cases if rows_of(case, "extattn") and not is_wide(case["results"]["extattn"])]


def short(tokens):
    return f"{tokens // 1024}k" if tokens and tokens % 1024 == 0 else f"{tokens}"


def labels(case):
    """Three lines under a group; the suite's title says the rest."""
    dims = f"{case['head_dim']}" + (f"/{case['head_dim_v']}" if case["head_dim_v"] not in (0, case["head_dim"]) else "")
    tokens = f"({short(case['prefix'])}+{short(case['extend'])})" if case["prefix"] else short(case["extend"])
    window = f", W {short(case['window'])}" if case["window"] > 0 else ""
    return f"D {dims}", f"{case['num_q_heads']}/{case['num_kv_heads']}{window}", f"{case['seqs']}×{tokens}"


def text(x, y, css, content):
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{css}">{escape(content)}</text>'


def breadth(groups):
    """In bars. A group has room for its labels, and some between it and the next."""
    return sum(max(len(group.bars), 3.3) + 1.3 for group in groups)


def draw_group(group, center, base, scale, bar):
    """Its bars beside each other, the numbers over them, the shape below."""
    parts = []
    left = center - bar * len(group.bars) / 2
    for i, (css, name, row) in enumerate(group.bars):
        height = row["tflops"] * scale
        x, said = left + i * bar, f"{name}, {shape(group.case)}: {row['median_ms']:.3f} ms, {row['tflops']:.0f} TFLOP/s"
        parts.append(f'<rect x="{x:.1f}" y="{base - height:.1f}" width="{bar - 1.5:.1f}" height="{height:.1f}" class="{css}">'
                     f"<title>{escape(said)}</title></rect>")  # fmt: skip
        ours = " ours" if css == "a" else ""
        parts.append(text(x + bar / 2 - 0.75, base - height - 3, "value" + ours, f"{row['tflops']:.0f}"))
    for line, css in zip(labels(group.case), ("group", "shape", "shape")):
        base += 14
        parts.append(text(center, base, css, line))
    return parts


def draw_row(panels, top, scale, most):
    """Panels beside each other on one scale: [(title, groups)]."""
    base = top + PLOT_HEIGHT
    parts = []
    for value in range(0, most + 1, STEP):
        y = base - value * scale
        css = "line" if value else "base"
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="{css}"/>')
        parts.append(text(LEFT - 5, y + 3.5, "scale", str(value)))
    room = WIDTH - LEFT - RIGHT - PANEL_GAP * (len(panels) - 1)
    unit = room / sum(breadth(groups) for _, groups in panels)
    x = LEFT
    for title, groups in panels:
        parts.append(text(x, top - 8, "panel", title))
        for group in groups:
            width = unit * breadth([group])
            parts += draw_group(group, x + width / 2, base, scale, min(unit, MOST_BAR))
            x += width
        x += PANEL_GAP
    return parts


def rows_of_panels(panels):
    """As many in a row as its groups leave readable."""
    rows = []
    for panel in panels:
        together = [*rows[-1], panel] if rows else []
        room = WIDTH - LEFT - RIGHT - PANEL_GAP * (len(together) - 1)
        if together and LEAST_BAR * sum(breadth(groups) for _, groups in together) <= room:
            rows[-1].append(panel)
        else:
            rows.append([panel])
    return rows


def draw(found):
    panels = [(PANELS[suite], groups_of(record, suite)) for suite, (record, _) in found.items()]
    bars = [bar for _, groups in panels for group in groups for bar in group.bars]
    most = -(-int(max(row["tflops"] for _, _, row in bars)) // STEP) * STEP
    scale = PLOT_HEIGHT / most
    device = next(iter(found.values()))[0]["device"]["name"]
    rows = rows_of_panels(panels)
    height = TOP + ROW_HEIGHT * len(rows) + 6
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">',
        f"<style>{STYLE}</style>",
        f'<rect width="{WIDTH}" height="{height}" rx="6" class="paper"/>',
        text(LEFT, 24, "title", f"bf16 attention on one {device}, TFLOP/s: more is better"),
    ]
    x = LEFT
    for _, name, css in BARS:
        if any(bar[0] == css for bar in bars):
            parts.append(f'<rect x="{x:.1f}" y="35" width="11" height="11" rx="2" class="{css}"/>')
            parts.append(text(x + 16, 44.5, "legend", name))
            x += 42 + 5.6 * len(name)
    for i, row in enumerate(rows):
        parts += draw_row(row, TOP + 30 + ROW_HEIGHT * i, scale, most)
    return "\n".join([*parts, "</svg>"]) + "\n"


def behind(found):
    """Shapes that a peer does faster, and how many there are."""
    lost, count = [], 0
    for suite, (record, _) in found.items():
        for group in groups_of(record, suite):
            count += 1
            ours = group.bars[0][2]["median_ms"]
            name, best = min(((name, row["median_ms"]) for _, name, row in group.bars), key=lambda bar: bar[1])
            if best < ours:
                lost.append(f"{shape(group.case)} ({name} takes {best / ours:.2f} of our time)")
    return lost, count


def describe(found, readme):
    """The picture, and what it rests on."""
    lost, count = behind(found)
    order = f"A peer is faster in {len(lost)} of {count} shapes: {'; '.join(lost)}." if lost else f"None of {count} shapes is slower than a peer's."  # fmt: skip
    links = ", ".join(f"[{PANELS[suite].lower()}]({os.path.relpath(path, readme.parent)}) ({record['date'][:10]}, commit {record['commit'][:12]})"
                      for suite, (record, path) in found.items())  # fmt: skip
    return (
        f"![Bars: TFLOP/s of extattn and its peers]({os.path.relpath(ROOT / IMAGE, readme.parent)})\n\n"
        "A group of bars is a shape: head dimension, query/key-value heads, window, sequences × (prefix + new) tokens; k is "
        "1024. Everybody ran in one process on the same tensors. Where a peer has no bar it cannot do the shape, or the record is without it. "
        f"{order} Records: {links}.\n"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail when picture or text is out of date")
    parser.add_argument("readme", nargs="?", type=Path, default=ROOT / "README.md")
    args = parser.parse_args()

    found = records(ROOT / "bench" / "results")
    readme = args.readme.resolve()
    old = readme.read_text(encoding="utf-8")
    begin, end = old.index("\n", old.index(BEGIN)) + 1, old.index(END)
    new = {readme: old[:begin] + "\n" + describe(found, readme) + "\n" + old[end:], ROOT / IMAGE: draw(found)}
    for path, content in new.items():
        if args.check and (not path.exists() or path.read_text(encoding="utf-8") != content):
            sys.exit(f"{path}: is not what bench/results gives; run scripts/bench_picture.py")
        if not args.check:
            path.write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()
