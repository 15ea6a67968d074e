# SPDX-License-Identifier: Apache-2.0
"""Allocators with the contract of SGLang's, and its attention calls by argument shape
(`merge_state` and `tree_verify`: on the CPU for NumPy arrays and CPU tensors, by the kernels for
torch tensors on a CUDA device).

`TokenToKVPoolAllocator` (page size 1) and `PagedTokenToKVPoolAllocator` stand in for the classes
of the same names: int64 slot ids, slot (page) 0 reserved, ids from 1; `alloc*` return None on
shortage and consume nothing; `free` takes any order, and the tokens of one page in any number;
free groups copy what they are given; `free_segment` needs neither a sort nor a synchronisation.
With placement "fifo" (need_sort off) and "sorted" (need_sort on) the ids equal the originals', in
the same order; "run" and "lowest" are other placements under the same contract. Unlike the
originals, freeing what is not live raises packstone.PageError and changes nothing, and the capacity
is tested before anything is done.

The free list is on the host. Results are NumPy arrays, or torch tensors on `device` when a torch
device is named. Arguments may be NumPy arrays or tensors, int32 or int64, of any stride; CPU
tensors are read in place through DLPack. A tensor on another device is copied to the host, which
waits for it: hand over the `*_cpu` twins that SGLang keeps, as alloc_extend and alloc_decode do.
"""

from __future__ import annotations

import sys

import numpy as np

from . import _packstone
from ._attention import merge_state, tree_verify

__all__ = [
    "PagedTokenToKVPoolAllocator",
    "TokenToKVPoolAllocator",
    "merge_state",
    "tree_verify",
]


def _host(values):
    """An object that the extension can read in place: NumPy, or DLPack in host memory."""
    if isinstance(values, np.ndarray):
        dtype = values.dtype
        readable = dtype.kind == "i" and dtype.itemsize >= 4 and dtype.isnative
        return values if readable else values.astype(np.int64)
    device = getattr(values, "device", None)
    if device is not None and getattr(device, "type", "cpu") != "cpu":
        return values.cpu()
    if hasattr(values, "__dlpack__"):
        return values
    return np.asarray(values, dtype=np.int64)


def _torch():
    # A look at the table of modules: the import statement costs as much as a small call.
    module = sys.modules.get("torch")
    if module is None:
        import torch as module
    return module


class _Allocator:
    """What both classes share; attributes and methods by SGLang's names."""

    def __init__(self, size, page_size, dtype, device, kvcache, need_sort, placement=None):
        if placement is None:
            placement = "sorted" if need_sort else "fifo"
        self.page_size = page_size
        self.dtype = dtype
        self.device = device
        self.need_sort = need_sort
        self.placement = placement
        self.free_group = []
        self.is_not_in_free_group = True
        self._kvcache = kvcache
        self._on_torch = device is not None and str(device) not in ("numpy", "host")
        self._pinned = self._on_torch and str(device).startswith("cuda")
        self._tensor = _torch().Tensor if self._on_torch else ()
        self._epoch = 0
        self._set_size(size)

    def _set_size(self, size):
        self.size = size
        self.num_pages = size // self.page_size
        self._core = _packstone.SlotAllocator(self.num_pages, self.page_size, self.placement)

    def _out(self, slots):
        if slots is None or not self._on_torch:
            return slots
        tensor = _torch().from_numpy(slots)
        return tensor if str(self.device) == "cpu" else tensor.to(self.device, non_blocking=True)

    # ---- state ----

    @property
    def size_full(self):
        return self.size

    def available_size(self):
        """Tokens that can be had now; what an open free group holds back is not among them."""
        return self._core.available_tokens

    def debug_print(self):
        return f"#available-tokens: {self.available_size()}, placement: {self.placement}, "

    def get_kvcache(self):
        return self._kvcache

    @property
    def free_pages(self):
        """int64: free pages in the order in which they will be handed out. O(pool)"""
        return self._out(self._core.free_list())

    @property
    def release_pages(self):
        """int64: freed pages that a sort has yet to merge; empty unless placement is sorted."""
        return self._out(self._core.release_list())

    def get_all_free_pages(self):
        return self._out(np.concatenate((self._core.free_list(), self._core.release_list())))

    def backup_state(self):
        """The free list, to go back to by restore_state while nothing has been freed. O(pool)"""
        return self._core.free_list(), self._core.release_list()

    def restore_state(self, state):
        """Back to backup_state's answer: what was allocated since is free again. O(pool)"""
        self._core.restore(state[0], state[1])

    def clear(self):
        """Everything free, in ascending order; an open free group is dropped."""
        self._core.clear()
        self.free_group = []
        self.is_not_in_free_group = True

    def resize(self, config):
        self._set_size(config.max_total_num_tokens)
        self.free_group = []
        self.is_not_in_free_group = True

    def check(self):
        """O(pool): raises packstone.InvariantError."""
        self._core.check()

    def verify_byte_accounting(self):
        """What is wrong, as a list of sentences; empty when nothing is."""
        try:
            self._core.check()
        except _packstone.InvariantError as fault:
            return [str(fault)]
        return []

    # ---- alloc and free ----

    def alloc(self, need_size):
        """int64 [need_size], or None. Whole pages: need_size is a multiple of the page size."""
        if not self._pinned:
            return self._out(self._core.alloc(need_size))
        # Page-locked memory reaches the device without a wait; torch keeps it until it has.
        torch = _torch()
        whole = need_size - need_size % self.page_size
        slots = torch.empty(whole, dtype=torch.int64, pin_memory=True)
        if not self._core.alloc_into(slots):
            return None
        return slots.to(self.device, non_blocking=True)

    def free(self, free_index):
        """The pages of these slots. Empty is a no-op; in a free group they are copied and wait."""
        if self.is_not_in_free_group:
            # Most of what DLPack costs is its capsule: a dense tensor is named by its address.
            if isinstance(free_index, self._tensor) and free_index.is_cpu:
                dense = free_index.dim() == 1 and free_index.is_contiguous()
                if dense and free_index.dtype is _torch().int64:
                    self._core._free_at(free_index.data_ptr(), free_index.numel())
                    return
            if len(free_index):
                self._core.free(_host(free_index))
        elif len(free_index):
            self.free_group.append(self._copy_for_free_group(free_index))

    def free_segment(self, free_index, *, start_pos=0):
        """Slots of consecutive tokens of one row, the first at token start_pos: no sort."""
        if len(free_index) == 0:
            return
        if self.is_not_in_free_group:
            self._core.free_segment(_host(free_index), start_pos)
        else:
            self.free_group.append(self._core.representatives(_host(free_index), start_pos))

    def free_segments(self, segments):
        """Ascending disjoint pieces [(slots, start_pos)] of one row. A page that two neighbours
        share is freed once."""
        last_page = -1
        kept = []
        for free_index, start_pos in segments:
            if len(free_index) == 0:
                continue
            pieces = self._core.representatives(_host(free_index), start_pos)
            first_page = int(pieces[0]) // self.page_size
            if first_page == last_page:
                pieces = pieces[1:]
            if len(pieces):
                kept.append(pieces)
                last_page = int(pieces[-1]) // self.page_size
        for pieces in kept:
            # One slot a page is left, so each page is a row of its own.
            if self.is_not_in_free_group:
                self._core.free(pieces)
            else:
                self.free_group.append(pieces)

    def free_full(self, free_index):
        self.free(free_index)

    def _copy_for_free_group(self, free_index):
        # A copy, because callers pass views of rows that are rewritten before the group ends.
        return np.array(_to_numpy(free_index), dtype=np.int64)

    def free_group_begin(self):
        if not self.is_not_in_free_group:
            raise _packstone.InvalidArgument("free groups cannot be nested")
        self.is_not_in_free_group = False
        self.free_group = []

    def free_group_end(self):
        self.is_not_in_free_group = True
        group, self.free_group = self.free_group, []
        if group:
            self.free(np.concatenate(group))

    def merge_and_sort_free(self):
        self._core.merge_and_sort()

    # ---- defragmentation ----

    def defrag(self, tables, values=(), *, moves_max=256):
        """Moves pages so that rows lie in fewer and longer runs; (tgt_loc, src_loc) int64.

        tables: arrays of slots of consecutive tokens, one a row, each from a page boundary on (the
        filled part of a row of req_to_token). values: every other array that names slots (tree
        nodes). Both are rewritten in place, so they are NumPy arrays or CPU tensors; pages that
        none of them names stay where they are. Then `kvcache.move_kv_cache(tgt_loc, src_loc)`
        copies the rows (tgt and src never overlap), and once that, and all work that was queued
        before with the old slots, is over, `defrag_done()` frees the pages that were left.
        moves_max: pages, at most.
        """
        self._epoch += 1
        tgt, src = self._core.defrag(list(tables), list(values), moves_max, self._epoch)
        return self._out(tgt), self._out(src)

    def defrag_done(self):
        """Frees the pages that defrag has left; returns how many."""
        return self._core.reclaim(self._epoch)

    # ---- hooks that the scheduler calls whatever the allocator ----

    def evict_to_free_tokens(self, tree_cache, num_tokens):
        """Asks the tree for what is lacking."""
        lacking = num_tokens - self.available_size()
        if lacking > 0 and tree_cache is not None:
            tree_cache.evict(lacking)

    def check_decode_capacity(self, num_tokens, tree_cache=None):
        self.evict_to_free_tokens(tree_cache, num_tokens)
        return self.available_size() >= num_tokens

    def translate_kv_indices_for_transfer(self, kv_indices):
        return kv_indices

    def get_cpu_copy(self, indices, *args, **kwargs):
        return self._kvcache.get_cpu_copy(indices, *args, **kwargs)

    def load_cpu_copy(self, kv_cache_cpu, indices, *args, **kwargs):
        return self._kvcache.load_cpu_copy(kv_cache_cpu, indices, *args, **kwargs)


class TokenToKVPoolAllocator(_Allocator):
    """Page size 1. `size` is in tokens; slots are 1 .. size."""

    def __init__(self, size, dtype, device, kvcache, need_sort, *, placement=None):
        super().__init__(size, 1, dtype, device, kvcache, need_sort, placement)

    def alloc_extend(self, *args, **kwargs):
        raise NotImplementedError("alloc_extend is only for paged allocator")

    def alloc_decode(self, *args, **kwargs):
        raise NotImplementedError("alloc_decode is only for paged allocator")


class PagedTokenToKVPoolAllocator(_Allocator):
    """Any page size. `size` is in tokens; the remainder of a page is not used."""

    def __init__(self, size, page_size, dtype, device, kvcache, need_sort, *, placement=None):
        super().__init__(size, page_size, dtype, device, kvcache, need_sort, placement)

    def alloc_extend(
        self,
        prefix_lens,
        prefix_lens_cpu,
        seq_lens,
        seq_lens_cpu,
        last_loc,
        extend_num_tokens,
        num_new_pages=None,
    ):
        """int64 [extend_num_tokens], row after row, or None.

        Row i grows from prefix_lens[i] to seq_lens[i] tokens; last_loc[i] is the slot of its last
        token, or -1. The *_cpu twins are what is read; num_new_pages is not needed.
        """
        prefix = prefix_lens if prefix_lens_cpu is None else prefix_lens_cpu
        seq = seq_lens if seq_lens_cpu is None else seq_lens_cpu
        return self._out(
            self._core.alloc_extend(_host(prefix), _host(seq), _host(last_loc), extend_num_tokens)
        )

    def alloc_decode(self, seq_lens, seq_lens_cpu, last_loc):
        """int64 [batch], one slot a row, or None. seq_lens counts the new token already."""
        seq = seq_lens if seq_lens_cpu is None else seq_lens_cpu
        return self._out(self._core.alloc_decode(_host(seq), _host(last_loc)))


def _to_numpy(values):
    values = _host(values)
    return values if isinstance(values, np.ndarray) else np.from_dlpack(values)
