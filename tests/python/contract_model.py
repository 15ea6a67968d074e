# SPDX-License-Identifier: Apache-2.0
"""The contract of SGLang's TokenToKVPoolAllocator and PagedTokenToKVPoolAllocator in plain Python:
written from its published behaviour, with lists, and sharing nothing with the library."""

from collections import deque


class ContractModel:
    def __init__(self, size, page_size, need_sort):
        self.page_size = page_size
        self.need_sort = need_sort
        self.num_pages = size // page_size
        self.clear()

    def clear(self):
        self.free_pages = deque(range(1, self.num_pages + 1))
        self.release_pages = []
        self.group = None

    def available_size(self):
        return (len(self.free_pages) + len(self.release_pages)) * self.page_size

    def merge_and_sort_free(self):
        self.free_pages = deque(sorted(list(self.free_pages) + self.release_pages))
        self.release_pages = []

    def _slice(self, count):
        return [self.free_pages.popleft() for _ in range(count)]

    def alloc(self, need_size):
        pages = need_size // self.page_size
        if self.need_sort and pages > len(self.free_pages):
            self.merge_and_sort_free()
        if pages > len(self.free_pages):
            return None
        size = self.page_size
        return [page * size + i for page in self._slice(pages) for i in range(size)]

    def alloc_extend(self, prefix_lens, seq_lens, last_loc):
        size = self.page_size
        tokens = sum(seq_lens) - sum(prefix_lens)
        wanted = sum(-(-s // size) - -(-p // size) for p, s in zip(prefix_lens, seq_lens))
        if self.need_sort and tokens // size + len(seq_lens) + 1 > len(self.free_pages):
            self.merge_and_sort_free()
        if wanted > len(self.free_pages):
            return None
        out = []
        for prefix, seq, slot in zip(prefix_lens, seq_lens, last_loc):
            position = prefix
            while position < seq and position % size:
                slot += 1
                position += 1
                out.append(slot)
            while position < seq:
                page = self.free_pages.popleft()
                count = min(size, seq - position)
                out.extend(range(page * size, page * size + count))
                position += count
        return out

    def alloc_decode(self, seq_lens, last_loc):
        size = self.page_size
        if self.need_sort and len(seq_lens) > len(self.free_pages):
            self.merge_and_sort_free()
        wanted = sum(seq % size == 1 for seq in seq_lens)
        if wanted > len(self.free_pages):
            return None
        return [
            self.free_pages.popleft() * size if seq % size == 1 else last + 1
            for seq, last in zip(seq_lens, last_loc)
        ]

    def free(self, slots):
        if not slots:
            return
        if self.group is not None:
            self.group.extend(slots)
            return
        if self.page_size == 1:
            (self.release_pages if self.need_sort else self.free_pages).extend(slots)
            return
        self._prepend(sorted({slot // self.page_size for slot in slots}))

    def free_segment(self, slots):
        """A slice of a row that starts at a page boundary."""
        if self.page_size == 1 or self.group is not None:
            return self.free(slots)
        self._prepend([slot // self.page_size for slot in slots[:: self.page_size]])

    def _prepend(self, pages):
        if self.need_sort:
            self.release_pages = pages + self.release_pages
        else:
            self.free_pages.extendleft(reversed(pages))

    def free_group_begin(self):
        self.group = []

    def free_group_end(self):
        slots, self.group = self.group, None
        self.free(slots)
