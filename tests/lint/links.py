#!/usr/bin/env python3
"""The documents lead where they say: links.py SOURCE-DIR

Every relative link of every Markdown file goes to a file that is there and, behind a #, to one of its headings; every
path of the sources that a page of docs/ names in `code` is there. Records under bench/results are kept for those links.
"""

import re
import sys
from pathlib import Path

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^(```|~~~).*?^\1", re.M | re.S)
PATH = re.compile(r"`((?:src|cli|tests|scripts|bench|cmake|include|python|examples)/[\w./-]+)`")


def slugs(text):
    """The anchors of a page's headings, as GitHub makes them."""
    for heading in re.findall(r"^#+ +(.*?)\s*$", FENCE.sub("", text), re.M):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        yield re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")


def wrong_links(page):
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for target in LINK.findall(text):
        if re.match(r"[a-z]+:", target):
            continue  # elsewhere
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        if not file.exists():
            yield f"{target}: no such file"
        elif anchor and anchor not in slugs(file.read_text(encoding="utf-8")):
            yield f"{target}: no such heading"


def wrong_paths(page, source):
    for name in PATH.findall(page.read_text(encoding="utf-8")):
        if not (source / name).exists():
            yield f"`{name}`: no such file"


def main():
    source = Path(sys.argv[1])
    pages = sorted(p for p in source.rglob("*.md") if not p.relative_to(source).parts[0].startswith(("build", ".", "shared")))
    wrong = [f"{page.relative_to(source)}: {what}" for page in pages for what in wrong_links(page)]
    wrong += [f"{page.relative_to(source)}: {what}" for page in sorted((source / "docs").glob("*.md"))
              for what in wrong_paths(page, source)]  # fmt: skip
    print("\n".join(wrong + [f"{len(pages)} pages, {len(wrong)} wrong"]))
    return int(bool(wrong) or len(pages) < 5)


if __name__ == "__main__":
    sys.exit(main())
