#!/usr/bin/env python3
"""The house stands: structure.py SOURCE-DIR

Rooms are the folders of src/. docs/design.md states their order in one line, "common < plan < ..."; a file includes
what lies in its own room or below, and rooms between the same two "<" know nothing of each other. So there are no
circles. The rooms and who includes whom are printed.

No function is longer than a screen and a half, mainloops excepted whose comment says why they are one piece
("in one piece: ..."), and no kernel's file is longer than can be read in one go. What is no function is told by the
layout that clang-format gives: a body ends with a brace that stands under the first column of its head.
"""

import re
import sys
from collections import Counter
from pathlib import Path

MAX_FUNCTION_LINES = 80
MAX_KERNEL_FILE_LINES = 500
KERNELS = "cuda/kernels/"
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)
ORDER = re.compile(r"^ {4}(\w[\w/]*(?:(?: <|,) \w[\w/]*)+)$", re.M)
REASON = re.compile(r"in\s+one\s+piece:\s+\w")


def levels_of(design):
    """The level of each room, from the order that the design states."""
    orders = [order for order in ORDER.findall(design) if " < " in order]
    if len(orders) != 1:
        sys.exit(f"docs/design.md: found {len(orders)} lines with an order of rooms, expected 1")
    return {room: i for i, level in enumerate(orders[0].split(" < ")) for room in level.split(", ")}


def room_of(path, rooms):
    """The innermost room that a path below src/ lies in; None for none."""
    inside = [room for room in rooms if path.startswith(room + "/")]
    return max(inside, key=len, default=None)


def check_includes(src, files, levels):
    arrows, failures = Counter(), []
    for path in files:
        name = str(path.relative_to(src))
        room = room_of(name, levels)
        if room is None:
            failures.append(f"src/{name}: in no room of the order in docs/design.md")
            continue
        for included in INCLUDE.findall(path.read_text()):
            if not (src / included).exists():
                if (src.parent / "include" / included).exists():
                    continue
                failures.append(f'src/{name}: includes "{included}", which is not below src/ or include/')
                continue
            other = room_of(included, levels)
            if other == room or other is None:
                continue
            arrows[room, other] += 1
            if levels[other] >= levels[room]:
                failures.append(f'src/{name}: includes "{included}", and {room} is not above {other}')
    return arrows, failures


def without_comments(text):
    """Comments and preprocessor lines blanked, with as many lines as before."""
    blank = lambda match: "\n" * match.group().count("\n")  # noqa: E731
    text = re.sub(r"/\*.*?\*/|//[^\n]*", blank, text, flags=re.S)
    return re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", blank, text, flags=re.M)


def functions(text):
    """(name, first line, last line) of every function body, methods of structs among them; lines from 0."""
    lines = without_comments(text).split("\n")
    head, start, end = "", 0, -1
    for i, line in enumerate(lines):
        if i <= end or not line.strip():
            continue
        if not head:
            start = i
        head += line.strip() + " "
        if head.endswith(("; ", "} ", ": ")):
            head = ""
        if not head.endswith("{ "):
            continue
        indent = re.match(" *", lines[start]).group()
        head = re.sub(r"__launch_bounds__\((?:[^()]|\([^()]*\))*\)", "", head)
        found = re.search(r"([\w~]+) ?\([^{]*\)(?: const)?(?: noexcept)? { $", head)
        if found and "=" not in head[: found.start()]:
            end = next((j for j in range(i + 1, len(lines)) if lines[j].startswith(indent + "}")), len(lines) - 1)
            yield found.group(1), start, end
        elif "=" in head:  # an initialiser
            end = next((j for j in range(i + 1, len(lines)) if lines[j].startswith(indent + "}")), len(lines) - 1)
        head = ""  # of a struct or a namespace the members come next


def comment_above(lines, line):
    """The comment that ends right above a line."""
    end = line
    while end > 0 and lines[end - 1].startswith("template"):
        end -= 1
    begin = end
    while begin > 0 and lines[begin - 1].lstrip().startswith(("/*", "*", "//")):
        begin -= 1
    return "\n".join(lines[begin:end])


def long_pieces(src, path):
    """What is too long."""
    name = str(path.relative_to(src))
    text = path.read_text()
    lines = text.split("\n")
    for function, start, end in functions(text):
        length = end - start + 1
        if length > MAX_FUNCTION_LINES and not REASON.search(comment_above(lines, start)):
            yield f"src/{name}:{start + 1}: {function}: found {length} lines, allowed {MAX_FUNCTION_LINES}"
    if name.startswith(KERNELS) and len(lines) - 1 > MAX_KERNEL_FILE_LINES:
        yield f"src/{name}: found {len(lines) - 1} lines, allowed {MAX_KERNEL_FILE_LINES} in a kernel's file"


def draw(arrows, levels):
    for room in sorted(levels, key=levels.get, reverse=True):
        below = [f"{to} {n}" for (of, to), n in sorted(arrows.items(), key=lambda a: -levels[a[0][1]]) if of == room]
        print(f"{room:14}-> {', '.join(below) or 'nothing'}")


def main():
    root = Path(sys.argv[1]).resolve()
    src = root / "src"
    files = sorted(path for suffix in ("c", "h", "cu", "c.in") for path in src.rglob(f"*.{suffix}"))
    levels = levels_of((root / "docs" / "design.md").read_text())
    arrows, failures = check_includes(src, files, levels)
    draw(arrows, levels)
    count = 0
    for path in files:
        count += len(list(functions(path.read_text())))
        failures += long_pieces(src, path)
    print(f"{len(files)} files, {count} functions")
    for failure in failures:
        print("FAILED", failure)
    if not count:
        sys.exit("found no function")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
