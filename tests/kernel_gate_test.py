# SPDX-License-Identifier: Apache-2.0
"""scripts/kernel-gate finds what it is there to find, in reports written by hand."""
import importlib.machinery
import importlib.util
import pathlib

path = pathlib.Path(__file__).resolve().parent.parent / "scripts/kernel-gate"
loader = importlib.machinery.SourceFileLoader("kernel_gate", str(path))
gate = importlib.util.module_from_spec(importlib.util.spec_from_loader("kernel_gate", loader))
loader.exec_module(gate)

REPORT = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'good' for 'sm_120a'
ptxas info    : Function properties for good
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 256 bytes smem
ptxas info    : Compiling entry function 'spilling' for 'sm_120a'
    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers
ptxas info    : Compiling entry function 'framed' for 'sm_120a'
    16 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers
"""
TABLE = {"good": 101_120, "framed": 0}


def faults_of(report, table):
    return {kernel["name"]: gate.check(kernel, table)[0] for kernel in gate.kernels_of(report)}


found = faults_of(REPORT, TABLE)
assert found["good"] == [], found
assert found["spilling"] == ["spills: 4 bytes of stores, 12 of loads"], found
assert found["framed"] == ["a stack frame of 16 bytes"], found
# One byte over the limit, static and dynamic together.
assert faults_of(REPORT, {"good": 101_121})["good"] == ["101377 bytes of shared memory, over 101376"]
assert faults_of("nothing of interest", TABLE) == {}
print("kernel_gate_test: passed")
