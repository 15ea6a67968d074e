#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A free and an alloc of 4,096 pages: the drop-in allocator beside the tensor operations that it replaces.

The tensor allocators concatenate on free (after a unique of the page ids when pages are larger than one token) and
slice on alloc. Both are measured here in one process on one pool, churned alike, in alternation; the time of a call
is the median. With torch at hand the operations are torch's on the CPU, else NumPy's. Prints one JSON line a case.

Usage: bench/sglang_free_list.py [--pages N] [--count 4096] [--least RATIO]
"""

import argparse
import json
import statistics
import sys
import time

import numpy as np

from packstone.sglang import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator

try:
    import torch
except ImportError:
    torch = None


class TensorLists:
    """Concatenate and slice, in the library at hand."""

    def __init__(self, pages, page_size):
        self.page_size = page_size
        self.free_pages = self.of(np.arange(1, pages + 1, dtype=np.int64))
        self.offsets = self.of(np.arange(page_size, dtype=np.int64))

    @staticmethod
    def of(values):
        return torch.from_numpy(values) if torch else values

    def alloc(self, tokens):
        count = tokens // self.page_size
        pages, self.free_pages = self.free_pages[:count], self.free_pages[count:]
        if self.page_size == 1:
            return pages
        return (pages[:, None] * self.page_size + self.offsets).reshape(-1)

    def free(self, slots):
        if self.page_size == 1:
            parts = (self.free_pages, slots)
        elif torch:
            parts = (torch.unique(slots // self.page_size), self.free_pages)
        else:
            parts = (np.unique(slots // self.page_size), self.free_pages)
        self.free_pages = torch.cat(parts) if torch else np.concatenate(parts)


class Side:
    def __init__(self, allocator, extents, count):
        self.allocator = allocator
        self.held = [allocator.alloc(count) for _ in range(extents)]
        self.count = count

    def shuffle(self, order):
        """Frees extents in a random order, and as many allocs: the list is no longer ascending."""
        for i in order:
            self.allocator.free(self.held[i])
            self.held[i] = self.allocator.alloc(self.count)

    def pair(self, i):
        begin = time.perf_counter_ns()
        self.allocator.free(self.held[i])
        self.held[i] = self.allocator.alloc(self.count)
        return time.perf_counter_ns() - begin


def measure(pages, page_size, count, rounds):
    tokens = count * page_size
    if page_size == 1:
        ours = TokenToKVPoolAllocator(pages, None, None, None, False)
    else:
        ours = PagedTokenToKVPoolAllocator(pages * page_size, page_size, None, None, None, False)
    extents = min(64, pages // 2 // count)
    sides = [Side(ours, extents, tokens), Side(TensorLists(pages, page_size), extents, tokens)]
    random = np.random.default_rng(1)
    order = random.integers(0, extents, size=2 * extents)
    for side in sides:
        side.shuffle(order)
    times = [[], []]
    for i in random.integers(0, extents, size=rounds):
        for side, each in zip(sides, times):
            each.append(side.pair(i))
        assert np.array_equal(np.asarray(sides[0].held[i]), np.asarray(sides[1].held[i]))
    ours_us, theirs_us = (statistics.median(each) / 1e3 for each in times)
    return {
        "how": "measured-cpu",
        "pool_pages": pages,
        "page_size": page_size,
        "pages_each": count,
        "packstone_us": round(ours_us, 1),
        "tensors_us": round(theirs_us, 1),
        "tensors": "torch" if torch else "numpy",
        "ratio": round(theirs_us / ours_us, 1),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pages", type=int, default=1 << 20)
    parser.add_argument("--count", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=101)
    parser.add_argument("--least", type=float, default=0, help="exit 1 when a ratio is below this")
    options = parser.parse_args()
    results = [measure(options.pages, size, options.count, options.rounds) for size in (1, 16)]
    for result in results:
        print(json.dumps(result))
    return 1 if min(result["ratio"] for result in results) < options.least else 0


if __name__ == "__main__":
    sys.exit(main())
