#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A free and an alloc of 4,096 pages: the drop-in allocator beside the tensor operations that it replaces.

The tensor allocators concatenate on free (after a unique of the page ids when pages are larger than one token), slice
on alloc, and with need_sort keep what was freed apart until a sort merges it. Both sides run in one process on one
pool, churned alike, in alternation, and must hand out the same ids. Three baselines, where they can be had:

  numpy       arrays on the host; ours hands out NumPy arrays
  torch-cpu   torch tensors on the host; ours hands out the same
  torch-cuda  torch tensors on the GPU, as a server keeps them; ours keeps the list on the host, reads slots that the
              server has there too, and brings what it hands out to the GPU

A call's time is the host's until it returns; with torch-cuda also until the GPU is done (done_us). Prints one JSON
line a case: median and 10th and 90th percentile of both sides, and the ratio of the medians.

Usage: bench/sglang_free_list.py [--pages N ...] [--page-size N ...] [--count 4096] [--least RATIO]
"""

import argparse
import json
import sys
import time

import numpy as np

from packstone.sglang import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator

try:
    import torch
except ImportError:
    torch = None


class ArrayLists:
    """The plain model on NumPy."""

    def __init__(self, pages, page_size, need_sort):
        self.page_size = page_size
        self.need_sort = need_sort
        self.free_pages = self.arange(1, pages + 1)
        self.release_pages = self.arange(0, 0)
        self.offsets = self.arange(0, page_size)

    def arange(self, first, last):
        return np.arange(first, last, dtype=np.int64)

    def join(self, *parts):
        return np.concatenate(parts)

    def unique(self, pages):
        return np.unique(pages)

    def sort(self, pages):
        return np.sort(pages)

    def alloc(self, tokens):
        count = tokens // self.page_size
        if self.need_sort and count > len(self.free_pages):
            self.free_pages = self.sort(self.join(self.free_pages, self.release_pages))
            self.release_pages = self.release_pages[:0]
        pages, self.free_pages = self.free_pages[:count], self.free_pages[count:]
        if self.page_size == 1:
            return pages
        return (pages[:, None] * self.page_size + self.offsets).reshape(-1)

    def free(self, slots):
        kept = "release_pages" if self.need_sort else "free_pages"
        if self.page_size == 1:
            parts = (getattr(self, kept), slots)
        else:
            parts = (self.unique(slots // self.page_size), getattr(self, kept))
        setattr(self, kept, self.join(*parts))


class TensorLists(ArrayLists):
    """The plain model on torch."""

    def __init__(self, pages, page_size, need_sort, device):
        self.device = device
        super().__init__(pages, page_size, need_sort)

    def arange(self, first, last):
        return torch.arange(first, last, dtype=torch.int64, device=self.device)

    def join(self, *parts):
        return torch.cat(parts)

    def unique(self, pages):
        return torch.unique(pages)

    def sort(self, pages):
        return torch.sort(pages)[0]


def nothing():
    pass


class Side:
    """An allocator and the extents that it has handed out; `seen` is what a free is given."""

    def __init__(self, allocator, extents, count, wait=nothing, on_host=None):
        self.allocator = allocator
        self.count = count
        self.wait = wait
        self.on_host = on_host or (lambda slots: slots)
        self.held = [allocator.alloc(count) for _ in range(extents)]
        self.seen = [self.on_host(slots) for slots in self.held]

    def replace(self, i):
        self.allocator.free(self.seen[i])
        self.held[i] = self.allocator.alloc(self.count)

    def timed(self, i):
        """Microseconds until the calls return, and until the device is done."""
        self.wait()
        begin = time.perf_counter_ns()
        self.replace(i)
        returned = time.perf_counter_ns()
        self.wait()
        done = time.perf_counter_ns()
        self.seen[i] = self.on_host(self.held[i])
        return (returned - begin) / 1e3, (done - begin) / 1e3

    def ids(self, i):
        return np.asarray(self.held[i].cpu() if hasattr(self.held[i], "cpu") else self.held[i])


def make(pages, page_size, need_sort, device):
    if page_size == 1:
        return TokenToKVPoolAllocator(pages, None, device, None, need_sort)
    return PagedTokenToKVPoolAllocator(pages * page_size, page_size, None, device, None, need_sort)


def sides_of(baseline, pages, page_size, need_sort, extents, tokens):
    if baseline == "numpy":
        lists, device = ArrayLists(pages, page_size, need_sort), None
        return Side(make(pages, page_size, need_sort, device), extents, tokens), Side(lists, extents, tokens)
    device = baseline.split("-")[1]
    lists = TensorLists(pages, page_size, need_sort, device)
    ours = make(pages, page_size, need_sort, device)
    if device == "cpu":
        return Side(ours, extents, tokens), Side(lists, extents, tokens)
    wait = torch.cuda.synchronize
    # A server knows its slots on the host (the *_cpu twins); the copy is not part of a free.
    on_host = lambda slots: slots.cpu().numpy()  # noqa: E731
    return Side(ours, extents, tokens, wait, on_host), Side(lists, extents, tokens, wait)


def spread(times):
    low, middle, high = np.percentile(times, (10, 50, 90))
    return {"median": round(middle, 2), "p10": round(low, 2), "p90": round(high, 2), "mean": round(np.mean(times), 2)}


def measure(baseline, pages, page_size, need_sort, options):
    tokens = options.count * page_size
    extents = max(1, min(64, pages // 2 // options.count))
    sides = sides_of(baseline, pages, page_size, need_sort, extents, tokens)
    random = np.random.default_rng(1)
    for i in random.integers(0, extents, size=2 * extents):
        for side in sides:
            side.replace(i)
            side.seen[i] = side.on_host(side.held[i])
    times = [[], []]
    for i in random.integers(0, extents, size=options.rounds):
        for side, each in zip(sides, times):
            each.append(side.timed(i))
        assert np.array_equal(sides[0].ids(i), sides[1].ids(i))
    returned, done = (
        [spread([pair[which] for pair in each]) for each in times] for which in (0, 1)
    )
    result = {
        "how": "measured-gpu" if baseline == "torch-cuda" else "measured-cpu",
        "baseline": baseline,
        "pool_pages": pages,
        "page_size": page_size,
        "need_sort": need_sort,
        "pages_each": options.count,
        "rounds": options.rounds,
        "packstone_us": returned[0],
        "baseline_us": returned[1],
        "ratio": round(returned[1]["median"] / returned[0]["median"], 1),
    }
    if baseline == "torch-cuda":
        result["card"] = torch.cuda.get_device_name()
        result["packstone_done_us"], result["baseline_done_us"] = done
        result["ratio_done"] = round(done[1]["median"] / done[0]["median"], 1)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pages", type=int, nargs="+", default=[1 << 16, 1 << 18, 1 << 20, 1 << 22])
    parser.add_argument("--page-size", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--baseline", nargs="+", help="numpy, torch-cpu, torch-cuda; default: all there are")
    parser.add_argument("--need-sort", action="store_true", help="lists that are sorted when they run short")
    parser.add_argument("--count", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=101)
    parser.add_argument("--least", type=float, default=0, help="exit 1 when a ratio is below this")
    options = parser.parse_args()
    baselines = options.baseline
    if baselines is None:
        baselines = ["numpy"] + (["torch-cpu"] if torch else [])
        baselines += ["torch-cuda"] if torch and torch.cuda.is_available() else []
    least = float("inf")
    for baseline in baselines:
        for pages in options.pages:
            for page_size in options.page_size:
                result = measure(baseline, pages, page_size, options.need_sort, options)
                print(json.dumps(result), flush=True)
                least = min(least, result["ratio"])
    return 1 if least < options.least else 0


if __name__ == "__main__":
    sys.exit(main())
