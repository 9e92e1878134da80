#!/usr/bin/env python3
"""The README tells the truth: readme.py SOURCE-DIR BUILD-DIR CC

Its C program compiles against the public header and runs; what it shows a command print is
what the command prints. In a shown output, a number with a decimal point stands for any
number, "..." for anything, and a line that is only "..." for any lines.
"""

import os
import re
import subprocess
import sys
import tempfile

NUMBER = re.compile(r"\d+\.\d+|\.\.\.|\s+")


def blocks(text, language):
    return re.findall(r"^```" + language + r"\n(.*?)^```$", text, re.M | re.S)


def line_pattern(line):
    """A regular expression for a line of shown output."""
    pattern, at = "", 0
    for match in NUMBER.finditer(line):
        pattern += re.escape(line[at : match.start()])
        found = match.group()
        pattern += ".*" if found == "..." else r"\s+" if found.isspace() else r"\d+(\.\d+)?"
        at = match.end()
    return re.compile(r"\s*" + pattern + re.escape(line[at:]) + r"\s*")


def mismatch(shown, printed):
    """The first shown line that was not printed in its place, or None."""
    at = 0
    anywhere = False
    for line in shown:
        if line.strip() == "...":
            anywhere = True
            continue
        pattern = line_pattern(line)
        while anywhere and at < len(printed) and not pattern.fullmatch(printed[at]):
            at += 1
        if at == len(printed) or not pattern.fullmatch(printed[at]):
            return line
        at += 1
        anywhere = False
    return None if anywhere or at == len(printed) else "(the end)"


def run(command, **options):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, **options)


def sessions(text):
    """(command, shown lines) of every console block."""
    for block in blocks(text, "console"):
        for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
            command, *shown = part.rstrip("\n").split("\n")
            yield command, shown


def check_commands(text, build):
    failures = 0
    commands = 0
    shown_test_line = False
    with tempfile.TemporaryDirectory() as folder:
        for command, shown in sessions(text):
            if command == "make test":  # this is run by it: only the form of its last line can be held to
                with open("scripts/test.sh", encoding="utf-8") as file:
                    script = re.sub(r"\$(passed|skipped)", "...", file.read().replace("$failed", "0"))
                shown_test_line = f'echo "{shown[-1]}"\n' in script
            if not command.startswith("build/extattn "):
                continue
            commands += 1
            print("--", command)
            # What the command reads and writes under build/ is in a folder of this test's own.
            here = command.replace(" build/", f" {folder}/").replace("build/extattn ", os.path.join(build, "extattn") + " ")
            printed = run(here, shell=True).stdout.replace(folder + "/", "build/").strip("\n").split("\n")
            wrong = mismatch(shown, printed)
            if wrong is not None:
                failures += 1
                print(f"the README shows: {wrong}\nthe command printed:\n" + "\n".join(printed))
    if commands < 3 or not shown_test_line:
        failures += 1
        print(f"found {commands} commands with output, and make test's last line: {shown_test_line}")
    return failures


def check_program(text, source, build, cc):
    programs = blocks(text, "c")
    if len(programs) != 1:
        print(f"found {len(programs)} C programs, expected 1")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "readme.c")
        with open(path, "w", encoding="utf-8") as file:
            file.write(programs[0])
        done = run(
            [cc, "-std=c11", "-Wall", "-Wextra", "-Werror", "-I", os.path.join(source, "include"), path]
            + ["-o", folder + "/readme", "-L", build, "-lextattn", "-Wl,-rpath," + build]
        )
        if done.returncode == 0:
            done = run([folder + "/readme"])
        print(done.stdout, end="")
        return int(done.returncode != 0)


def main():
    source, build, cc = sys.argv[1:]
    os.chdir(source)
    with open("README.md", encoding="utf-8") as file:
        text = file.read()
    sys.exit(min(check_program(text, source, build, cc) + check_commands(text, build), 1))


if __name__ == "__main__":
    main()
