#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The rules of this repository that a compiler does not check.

Folders, bottom up; each may include the ones below it in this table and itself:

    include/packstone         nothing of ours but itself
    include/packstone/cuda    include/packstone
    kernels                   include
    src                       include (the CUDA-free half of it, but for src/cuda), kernels
    sim                       include, src
    tests, bench, examples    everything

Usage: tests/tidy.py [ROOT]. Exit status 1 and one line per fault when a rule is broken.
"""

import pathlib
import re
import subprocess
import sys

CODE = {".cpp", ".hpp", ".cu", ".cuh", ".c", ".h"}
HEADERS = {".hpp", ".cuh", ".h"}
SCRIPTS = {".py", ".sh", ".cmake"}
COLUMNS = 100
COLUMNS_SCRIPT = 140  # shell and CMake have no formatter
LINES_WARN = 400
LINES_FAIL = 600

# What the code in a folder may include of ours. The first folder that matches counts.
MAY_INCLUDE = [
    ("include/packstone/cuda/", ("include/",)),
    ("include/", ("include/packstone/",)),
    ("kernels/", ("include/", "kernels/")),
    ("src/cuda/", ("include/", "src/", "kernels/")),
    ("src/c_api/", ("include/", "src/")),
    ("src/", ("include/packstone/", "src/")),
    ("sim/", ("include/", "src/", "sim/")),
]
# Where the host half must not look: a machine without the toolkit compiles it.
CUDA_FREE = ("include/packstone/", "src/")
CUDA_PARTS = ("include/packstone/cuda/", "src/cuda/", "src/c_api/")  # the last asks the compiler

INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]')
CUDA_TOOLKIT = re.compile(r"^(cuda|cub/|thrust/|nv/|driver_types|vector_types)")
# Written in two parts, so that this file does not break its own rules.
UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b")
MACHINE_PATH = re.compile(r"(?<![\w.$})])/(work|tmp|home|root)/")
TEST = re.compile(r"^(TEST|TEST_F|TEST_P|TYPED_TEST)\(([^)]*)\)", re.MULTILINE)
EXPECTATION = re.compile(
    r"\b((EXPECT|ASSERT)_\w+|ADD_FAILURE|FAIL|GTEST_SKIP|RC_ASSERT)\b|\brc::")


class Tidy:
    def __init__(self, root):
        self.root = root
        self.faults = []
        self.warnings = []

    def fault(self, path, line, what):
        place = f"{path}:{line}" if line else path
        self.faults.append(f"{place}: {what}")

    def files(self):
        """Tracked files; every file when this is no git checkout (a release archive)."""
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=self.root, capture_output=True,
                                check=False)
        if listed.returncode == 0 and listed.stdout:
            names = listed.stdout.decode().split("\0")[:-1]
        else:
            names = [str(p.relative_to(self.root)) for p in self.root.rglob("*") if p.is_file()]
            names = [n for n in names if not n.startswith(("build/", ".git/", "out/"))]
        return sorted(n for n in names if (self.root / n).is_file())

    def resolve(self, path, quote, name):
        """The file of this repository that an include names, or None for one of others'."""
        if quote == "<" and not name.startswith("packstone/"):
            return None
        folder = str(pathlib.PurePosixPath(path).parent)
        for candidate in (f"include/{name}", f"{folder}/{name}", name):
            if (self.root / candidate).is_file():
                return candidate
        return f"(no such file) {name}"

    def check_include(self, path, number, quote, name):
        if path.startswith(CUDA_FREE) and not path.startswith(CUDA_PARTS):
            if name.startswith("packstone/cuda/") or CUDA_TOOLKIT.match(name):
                self.fault(path, number, f"the CUDA-free half includes {name}")
        target = self.resolve(path, quote, name)
        if target is None:
            return
        if target.startswith("(no such"):
            if not path.startswith(("tests/consumer", "examples/")):
                self.fault(path, number, f"includes {name}, which is not there")
            return
        for folder, allowed in MAY_INCLUDE:
            if path.startswith(folder):
                if not target.startswith(allowed):
                    self.fault(path, number, f"{folder} may not include {target}")
                return

    def check_code(self, path, text, lines):
        suffix = pathlib.PurePosixPath(path).suffix
        if suffix in HEADERS and not any(l.strip() == "#pragma once" for l in lines[:40]):
            guarded = suffix == ".h" and any(l.startswith("#ifndef PACKSTONE") for l in lines[:40])
            if not guarded:
                self.fault(path, 1, "a header without #pragma once")
        for number, line in enumerate(lines, 1):
            if found := INCLUDE.match(line):
                self.check_include(path, number, found[1], found[2])
            if (suffix in HEADERS and not path.startswith(("tests/", "bench/"))
                    and re.match(r"\s*using\s+namespace\b", line)):
                self.fault(path, number, "using namespace in a header")
        if len(lines) > LINES_FAIL:
            self.fault(path, 0, f"{len(lines)} lines, at most {LINES_FAIL}")
        elif len(lines) > LINES_WARN:
            self.warnings.append(f"{path}: {len(lines)} lines, {LINES_WARN} are enough")
        if path.startswith("tests/") and re.search(r"_test\.(cpp|cu)$", path):
            self.check_tests(path, text)

    def check_tests(self, path, text):
        """Each TEST expects something, itself or through a helper of the file that does."""
        starts = list(TEST.finditer(text))
        if not starts:
            self.fault(path, 0, "a test file without a TEST")
            return
        bodies = {}
        for start in starts:
            end = text.find("\n}", start.end())
            bodies[start] = text[start.end():end if end >= 0 else len(text)]
        outside = text
        for body in bodies.values():
            outside = outside.replace(body, "")
        helpers = self.expecting_helpers(path, outside)
        for start, body in bodies.items():
            if EXPECTATION.search(body):
                continue
            if any(re.search(rf"\b{name}\s*[(<]", body) for name in helpers):
                continue
            number = text.count("\n", 0, start.start()) + 1
            self.fault(path, number, f"{start[1]}({start[2]}) expects nothing")

    def expecting_helpers(self, path, outside):
        """Names of functions, here or in the fixtures beside, that contain an expectation."""
        sources = [outside]
        for found in re.finditer(r'#\s*include\s+"([^"]+)"', outside):
            target = self.resolve(path, '"', found[1])
            if target and target.startswith("tests/"):
                sources.append((self.root / target).read_text(encoding="utf-8"))
        names = set()
        for source in sources:
            for found in re.finditer(r"^[ ]{0,2}\S[^;\n]*?\b(\w+)\([^;]*?\{\n", source, re.MULTILINE):
                indent = re.match(r" *", found[0])[0]
                end = source.find(f"\n{indent}}}", found.end())
                if EXPECTATION.search(source[found.end():end]):
                    names.add(found[1])
        return names

    def check_file(self, path):
        suffix = pathlib.PurePosixPath(path).suffix
        name = pathlib.PurePosixPath(path).name
        raw = (self.root / path).read_bytes()
        if b"\0" in raw[:4096]:
            return
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError:
            return  # test data on purpose
        lines = text.splitlines()
        is_code = suffix in CODE
        is_script = suffix in SCRIPTS or name == "CMakeLists.txt" or text.startswith("#!")
        if is_code or is_script:
            if not any("SPDX-License-Identifier: Apache-2.0" in l for l in lines[:2]):
                self.fault(path, 1, "the first line names no licence")
            if raw and not raw.endswith(b"\n"):
                self.fault(path, len(lines), "the last line has no end")
            for number, line in enumerate(lines, 1):
                most = COLUMNS if is_code else COLUMNS_SCRIPT
                if len(line) > most and "https://" not in line:
                    self.fault(path, number, f"{len(line)} columns, at most {most}")
                if line != line.rstrip():
                    self.fault(path, number, "spaces at the end of the line")
        if is_code:
            self.check_code(path, text, lines)
        if is_code or is_script or suffix in {".md", ".json", ".html", ".js", ".css"}:
            for number, line in enumerate(lines, 1):
                if UNFINISHED.search(line):
                    self.fault(path, number, "unfinished: " + line.strip())
                if MACHINE_PATH.search(line) and not path.startswith("tests/"):
                    self.fault(path, number, "a path of one machine: " + line.strip())

    def run(self):
        names = self.files()
        for path in names:
            self.check_file(path)
        for line in self.warnings:
            print("warning:", line)
        for line in self.faults:
            print(line)
        print(f"tidy: {len(names)} files, {len(self.faults)} faults, "
              f"{len(self.warnings)} warnings")
        return 1 if self.faults else 0


if __name__ == "__main__":
    default = pathlib.Path(__file__).resolve().parent.parent
    sys.exit(Tidy(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default).run())
