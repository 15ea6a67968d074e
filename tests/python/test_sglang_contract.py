# SPDX-License-Identifier: Apache-2.0
"""The drop-in allocators against the plain model of their contract: a million random operations in
all, every id equal; and the particulars that a random stream would not reach."""

import random

import numpy as np
import packstone
import pytest
from contract_model import ContractModel
from packstone.sglang import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator

OPERATIONS = 250_000


def make(size, page_size, need_sort, **options):
    if page_size == 1:
        return TokenToKVPoolAllocator(size, None, None, None, need_sort, **options)
    return PagedTokenToKVPoolAllocator(size, page_size, None, None, None, need_sort, **options)


class Sides:
    """Both sides of one stream of calls, and the rows that the slots went to."""

    def __init__(self, page_size, need_sort, seed):
        self.random = random.Random(seed)
        self.page_size = page_size
        size = 192 * page_size
        self.real = make(size, page_size, need_sort)
        self.model = ContractModel(size, page_size, need_sort)
        self.rows = []
        self.grouped = False
        self.refused = 0
        self.compared = 0

    def same(self, got, expected):
        if expected is None:
            assert got is None
            self.refused += 1
            return False
        assert got.dtype == np.int64
        assert got.tolist() == expected
        self.compared += len(expected)
        return True

    def alloc(self):
        tokens = self.random.randrange(9) * self.page_size
        expected = self.model.alloc(tokens)
        if self.same(self.real.alloc(tokens), expected) and expected:
            self.rows.append(expected)

    def extend(self):
        if self.page_size == 1:
            return self.alloc()
        chosen = [r for r in self.rows if self.random.random() < 0.1]
        if self.random.random() < 0.7:
            chosen.append([])
        prefix = [len(row) for row in chosen]
        seq = [p + self.random.randrange(5 * self.page_size) for p in prefix]
        last = [row[-1] if row else -1 for row in chosen]
        expected = self.model.alloc_extend(prefix, seq, last)
        kind = self.random.choice((np.int32, np.int64))
        lens = [np.array(each, dtype=kind) for each in (prefix, seq)]
        got = self.real.alloc_extend(
            lens[0], lens[0], lens[1], lens[1], np.array(last, dtype=np.int64), sum(seq) - sum(prefix)
        )
        if not self.same(got, expected):
            return
        at = 0
        for row, p, s in zip(chosen, prefix, seq):
            row.extend(expected[at : at + s - p])
            at += s - p
            if p == 0 and s > 0:
                self.rows.append(row)

    def decode(self):
        if self.page_size == 1:
            return self.alloc()
        chosen = self.rows[: self.random.randrange(12)]
        seq = [len(row) + 1 for row in chosen]
        last = [row[-1] for row in chosen]
        expected = self.model.alloc_decode(seq, last)
        seq_array = np.array(seq, dtype=np.int64)
        got = self.real.alloc_decode(seq_array, seq_array, np.array(last, dtype=np.int64))
        if self.same(got, expected):
            for row, slot in zip(chosen, expected):
                row.append(slot)

    def free(self):
        if not self.rows:
            return
        row = self.rows.pop(self.random.randrange(len(self.rows)))
        way = self.random.randrange(4)
        if way == 0:
            self.random.shuffle(row)
        view = np.array(row + row, dtype=np.int64)[: len(row)]
        if way == 1:
            self.real.free_segment(view, start_pos=0)
            self.model.free_segment(row)
        else:
            self.real.free(view)
            self.model.free(row)
        view[:] = -1  # a free group must have copied it

    def truncate(self):
        if not self.rows:
            return
        row = self.random.choice(self.rows)
        keep = self.random.randrange(len(row) // self.page_size + 1) * self.page_size
        tail = row[keep:]
        self.real.free_segment(np.array(tail, dtype=np.int64), start_pos=keep)
        self.model.free_segment(tail)
        del row[keep:]
        if not row:
            self.rows.remove(row)

    def group(self):
        if self.grouped:
            self.real.free_group_end()
            self.model.free_group_end()
        else:
            self.real.free_group_begin()
            self.model.free_group_begin()
        self.grouped = not self.grouped

    def step(self):
        dice = self.random.random()
        if dice < 0.35:
            self.free()
        elif dice < 0.45:
            self.truncate()
        elif dice < 0.65:
            self.extend()
        elif dice < 0.85:
            self.decode()
        elif dice < 0.97:
            self.alloc()
        else:
            self.group()
        assert self.real.available_size() == self.model.available_size()


@pytest.mark.parametrize("need_sort", [False, True])
@pytest.mark.parametrize("page_size", [1, 16])
def test_ids_equal_the_models(page_size, need_sort):
    sides = Sides(page_size, need_sort, seed=page_size + need_sort)
    for i in range(OPERATIONS):
        sides.step()
        if i % 50_000 == 0:
            sides.real.check()
            assert sides.real.free_pages.tolist() == list(sides.model.free_pages)
            assert sides.real.release_pages.tolist() == sides.model.release_pages
    assert sides.compared > OPERATIONS and sides.refused > 100


@pytest.mark.parametrize("placement", ["run", "lowest", "lifo"])
@pytest.mark.parametrize("page_size", [1, 16])
def test_other_placements_keep_the_contract_but_for_the_order(placement, page_size):
    allocator = make(64 * page_size, page_size, False, placement=placement)
    first = allocator.alloc(40 * page_size)
    assert len(set(first.tolist())) == 40 * page_size and first.min() >= page_size
    assert allocator.alloc(25 * page_size) is None
    assert allocator.available_size() == 24 * page_size
    allocator.free(first[::-1])
    assert allocator.available_size() == 64 * page_size
    allocator.check()


def test_run_placement_continues_a_row_where_fifo_scatters_it():
    runs = {}
    for placement in ("fifo", "run"):
        allocator = PagedTokenToKVPoolAllocator(64, 4, None, None, None, False, placement=placement)
        blocks = [allocator.alloc(4) for _ in range(16)]
        for block in blocks[1::2] + blocks[8:15:2]:
            allocator.free(block)
        lens = np.array([0]), np.array([20])
        row = allocator.alloc_extend(lens[0], lens[0], lens[1], lens[1], np.array([-1]), 20)
        runs[placement] = 1 + int((np.diff(row) != 1).sum())
    assert runs["run"] < runs["fifo"]


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("need_sort", [False, True])
def test_backup_and_restore_put_the_list_back(page_size, need_sort):
    allocator = make(32 * page_size, page_size, need_sort)
    kept = allocator.alloc(8 * page_size)
    allocator.free(kept[2 * page_size : 5 * page_size])
    before = allocator.free_pages.tolist(), allocator.release_pages.tolist()
    state = allocator.backup_state()
    drafts = allocator.alloc(20 * page_size)
    allocator.restore_state(state)
    assert (allocator.free_pages.tolist(), allocator.release_pages.tolist()) == before
    assert allocator.alloc(20 * page_size).tolist() == drafts.tolist()
    allocator.check()
    allocator.free(kept[:page_size])
    with pytest.raises(packstone.InvalidArgument):
        allocator.restore_state(state)


def test_reading_the_free_list_does_not_change_it():
    for page_size in (1, 4):
        allocator = make(64, page_size, False)
        a, b = allocator.alloc(16), allocator.alloc(16)
        allocator.free(a)
        allocator.free(b[:8])
        order = allocator.free_pages.tolist()
        assert allocator.free_pages.tolist() == order
        allocator.check()
        expected = [p * page_size + i for p in order for i in range(page_size)]
        assert allocator.alloc(len(expected)).tolist() == expected


def test_mistakes_raise_and_change_nothing():
    allocator = make(64, 4, False)
    slots = allocator.alloc(8)
    allocator.free(slots[:4])
    for bad in ([int(slots[0])], [0], [-1], [4 * 1000], [1 << 40], [int(slots[4]), 0]):
        with pytest.raises(packstone.PageError):
            allocator.free(np.array(bad, dtype=np.int64))
        assert allocator.available_size() == 60
    one = np.array([3])
    with pytest.raises(packstone.InvalidArgument):  # the last slot is not where the row ends
        allocator.alloc_extend(one, one, one + 1, one + 1, np.array([8]), 1)
    with pytest.raises(packstone.InvalidArgument):  # rows that do not add up
        allocator.alloc_extend(one, one, one + 2, one + 2, np.array([6]), 1)
    with pytest.raises(packstone.InvalidArgument):
        allocator.alloc(-4)
    # Growths whose sum passes 64 bits and comes out as what was announced.
    engine = packstone.SlotAllocator(64, 1, "fifo")
    lengths = np.array([5] + 4 * [1 << 62], dtype=np.int64)
    with pytest.raises(packstone.InvalidArgument):
        engine.alloc_extend(lengths * 0, lengths, lengths * 0 - 1, 5)
    assert engine.available_tokens == 64
    with pytest.raises(packstone.InvalidArgument):
        allocator.free_group_begin(), allocator.free_group_begin()
    with pytest.raises(NotImplementedError):
        make(64, 1, False).alloc_decode(one, one, one)
    allocator.free_group_end()
    allocator.check()


def test_segments_that_share_a_page_free_it_once():
    allocator = make(64, 4, False)
    row = allocator.alloc(16)
    allocator.free_segments([(row[0:6], 0), (row[6:9], 6), (row[9:16], 9)])
    assert allocator.available_size() == 64
    # An unaligned piece by itself takes every page that it touches.
    row = allocator.alloc(16)
    allocator.free_segment(row[3:9], start_pos=3)
    assert allocator.available_size() == 60
    allocator.check()


def test_empty_calls_and_resize():
    allocator = make(64, 4, False)
    none = np.array([], dtype=np.int64)
    assert allocator.alloc(0).tolist() == []
    assert allocator.alloc_decode(none, none, none).tolist() == []
    assert allocator.alloc_extend(none, none, none, none, none, 0).tolist() == []
    allocator.free(none)

    class Config:
        max_total_num_tokens = 130

    allocator.resize(Config)
    assert (allocator.size, allocator.num_pages, allocator.available_size()) == (130, 32, 128)
    allocator.alloc(8)
    allocator.clear()
    assert allocator.available_size() == 128 and allocator.verify_byte_accounting() == []
