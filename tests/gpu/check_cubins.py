#!/usr/bin/env python3
"""What can be checked of the kernels without a GPU: what the compiler made of them.

    check_cubins.py BUILD/cuda SOURCE/src/plan/kernel_list.h [--library BUILD/libextattn.so]

From ptxas's logs: no spills, no stack frame, no static shared memory (the plan counts all of
it), registers that let as many blocks share a multiprocessor as the
shape says, no serialised wgmma. From the disassembly: the instructions that each family is
about, and no access to local memory. Of the library: at most 30 MB.

The disassembler is nvdisasm: the toolkit's own, or the one that requirements.txt names,
installed beside the cubins. Without either that half is left out, and the last line says so.
"""

import argparse
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

MAX_LIBRARY_BYTES = 30 * 1000 * 1000
REGISTERS_OF_MULTIPROCESSOR = 65536
# ptxas 12 and later, "Potential Performance Loss": wgmma runs serialised.
SERIALISED_WGMMA = re.compile(r"\(C75(10|11|12|13|14|15|20)\)")

# By the kernel's family (its name's first word): instructions that must be there.
EXPECTED = {
    "portable": ["HMMA.16816.F32", "LDSM.16.M88.4", "LDSM.16.MT88.4", "LDGSTS.E.BYPASS"],
    "hopper": ["HGMMA", "UTMALDG", "SYNCS"],
    "schedule": ["ATOMS", "STG"],
    "stage": ["LDG.E.128", "STG.E.128"],
    "validate": ["LDG"],
    "merge": ["LDG", "STG"],
}
FORBIDDEN = [r"\bLDL\b", r"\bSTL\b"]


class Cubin:
    def __init__(self, path):
        self.path = path
        self.kernel, self.arch = path.name.removesuffix(".cubin").rsplit(".", 1)
        self.family = self.kernel.split("_")[0]
        self.log = path.with_suffix(".log").read_text()

    def number(self, pattern):
        found = re.search(pattern, self.log)
        return int(found.group(1)) if found else 0


def register_limits(kernel_list):
    """Registers a thread may have, by kernel: the portable ones' blocks are to share a multiprocessor."""
    limits = {}
    row = re.compile(r'^  PORTABLE\((\w+), "[^"]*", "[^"]*", ([\d, ]+)\)', re.M)
    for shape, numbers in row.findall(kernel_list.read_text()):
        _, _, _, _, qm, qn, _, _, blocks = (int(n) for n in numbers.split(", "))
        for dtype in ["bf16", "f16"]:
            limits[f"portable_{shape}_{dtype}"] = REGISTERS_OF_MULTIPROCESSOR // (qm * qn * 32 * blocks)
    return limits


def resource_failures(cubin, limits):
    if f"'{cubin.kernel}' for '{cubin.arch}'" not in cubin.log:
        return [f"the log does not speak of {cubin.kernel} for {cubin.arch}"]
    failures = []
    for what in ["stack frame", "spill stores", "spill loads", "smem"]:
        found = cubin.number(rf"(\d+) bytes {what}")
        if found > 0:
            failures.append(f"bytes of {what}: found {found}, allowed 0")
    registers = cubin.number(r"Used (\d+) registers")
    if registers == 0:
        failures.append("registers: found none in the log")
    if cubin.family == "portable" and registers > limits[cubin.kernel]:
        failures.append(f"registers: found {registers}, allowed {limits[cubin.kernel]}")
    serialised = SERIALISED_WGMMA.search(cubin.log)
    if serialised:
        failures.append(f"ptxas says {serialised.group(0)}: wgmma is serialised")
    return failures


def sass_failures(cubin, nvdisasm):
    answer = subprocess.run([nvdisasm, "-c", cubin.path], capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        return [f"nvdisasm: {answer.stderr.strip()}"]
    failures = [f"SASS: found no {name}" for name in EXPECTED[cubin.family] if name not in answer.stdout]
    for pattern in FORBIDDEN:
        count = len(re.findall(pattern, answer.stdout))
        if count:
            failures.append(f"SASS: found {count} of {pattern}, allowed 0")
    return failures


def find_nvdisasm(cuda_dir):
    """The disassembler's path, or None and why there is none."""
    tools = cuda_dir / "tools"
    installed = tools / "nvidia" / "cu13" / "bin" / "nvdisasm"
    for candidate in [shutil.which("nvdisasm"), "/usr/local/cuda/bin/nvdisasm", installed]:
        if candidate and Path(candidate).exists():
            return str(candidate), ""
    requirements = Path(__file__).with_name("requirements.txt")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", tools, "--requirement", requirements]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if not installed.exists():
        lines = answer.stderr.strip().splitlines() or ["pip installed something else"]
        return None, lines[-1]
    installed.chmod(0o755)
    return str(installed), ""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cuda_dir", type=Path)
    parser.add_argument("kernel_list", type=Path)
    parser.add_argument("--library", type=Path)
    args = parser.parse_args()

    cubins = [Cubin(path) for path in sorted(args.cuda_dir.glob("*.cubin"))]
    if not cubins:
        print("skipped: this build has no CUDA kernels")
        return 77
    limits = register_limits(args.kernel_list)
    nvdisasm, trouble = find_nvdisasm(args.cuda_dir)

    def check(cubin):
        failures = resource_failures(cubin, limits)
        return failures + sass_failures(cubin, nvdisasm) if nvdisasm else failures

    failed = 0
    with ThreadPoolExecutor() as pool:
        for cubin, failures in zip(cubins, pool.map(check, cubins)):
            registers = cubin.number(r"Used (\d+) registers")
            print(f"{'FAILED' if failures else 'ok':7}{cubin.kernel}.{cubin.arch}: {registers} registers")
            for failure in failures:
                print(f"       {failure}")
            failed += bool(failures)

    if args.library:
        size = args.library.stat().st_size if args.library.exists() else None
        if size is None or size > MAX_LIBRARY_BYTES:
            found = "no such file" if size is None else f"{size} bytes"
            print(f"FAILED {args.library}: found {found}, allowed {MAX_LIBRARY_BYTES} bytes")
            failed += 1
    print(f"{len(cubins)} cubins, {failed} failures")
    if not nvdisasm:
        print(f"the disassembly was not looked at: no nvdisasm ({trouble})")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
