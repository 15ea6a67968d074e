# SPDX-License-Identifier: Apache-2.0
import random

import numpy as np
import packstone
import pytest
from packstone.sglang import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator


def test_a_plan_is_applied_once():
    manager = packstone.KvManager(33, policy="fifo")
    gone, kept = manager.create(), manager.create()
    manager.append(gone, 6)
    manager.append(kept, 4)
    manager.finish(gone)
    plan = manager.plan_moves(objective="frontier", held=np.array([1]))
    assert plan.moves.tolist() == [[7, 2], [8, 3], [9, 4], [10, 5]]
    assert plan.moves.dtype == np.int32 and plan.reason == "planned"
    assert plan.patches[0] == (kept, 0, 7, 2) and plan.frontier_after == 5
    manager.apply(plan, 1)
    assert manager.pages(kept).tolist() == [2, 3, 4, 5]
    with pytest.raises(packstone.PageError):
        manager.apply(plan, 1)
    assert manager.reclaim(1) == 4
    manager.check()
    with pytest.raises(packstone.InvalidArgument):
        manager.plan_moves(objective="tidy")


def test_a_draft_tree_is_committed():
    tree = packstone.DraftTree([-1, 0, 0, 2])
    assert tree.positions(10).tolist() == [10, 11, 11, 12]
    assert tree.mask().tolist() == [[1], [3], [5], [13]] and tree.path_to(3) == [0, 2, 3]
    assert packstone.DraftTree.chain(3).parents == [-1, 0, 1]
    with pytest.raises(packstone.TreeError) as fault:
        packstone.DraftTree([-1, 1])
    assert fault.value.node == 1
    manager = packstone.KvManager(33, page_size=4, policy="fifo")
    seq = manager.create()
    manager.append(seq, 6)
    manager.draft([(seq, 4)])
    assert manager.draft_slot(seq, 0) == 10
    with pytest.raises(packstone.TreeError):
        manager.accept(seq, tree, [0, 3])
    moves, released = manager.accept(seq, tree, [0, 2, 3])
    assert moves.tolist() == [[12, 11], [13, 12]] and released.tolist() == []
    assert manager.length(seq) == 9
    with pytest.raises(packstone.OutOfPages):
        manager.draft([(seq, 200)])


def test_prefixes_are_shared():
    manager = packstone.KvManager(17, page_size=2)
    cache = packstone.PrefixCache(manager)
    ids = np.arange(11, 16)
    a = manager.create()
    manager.append(a, 5)
    stored, lock = cache.insert(ids, manager.pages(a))
    pages, other = cache.match(ids)
    assert stored == 2 and pages.tolist() == manager.pages(a)[:2].tolist()
    b = manager.create(prefix=pages)
    assert manager.length(b) == 4
    assert len(cache.match(ids, salt=1)[0]) == 0
    manager.check(cache.held)
    cache.unlock(lock)
    cache.unlock(other)
    with pytest.raises(packstone.InvalidArgument):
        cache.unlock(lock)
    manager.finish(a)
    manager.finish(b)
    assert sorted(cache.evict(8).tolist()) == sorted(pages.tolist()) and cache.pages == 0
    cache.check()
    manager.check()


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("placement", ["fifo", "sorted", "run"])
def test_defrag_of_a_servers_own_tables(page_size, placement):
    """Rows of a pool follow their slots: what each table read before it reads after."""
    dice = random.Random(page_size)
    size = 400
    if page_size == 1:
        allocator = TokenToKVPoolAllocator(size, None, None, None, False, placement=placement)
    else:
        allocator = PagedTokenToKVPoolAllocator(
            size, page_size, None, None, None, False, placement=placement
        )
    rows = np.zeros((8, 64), dtype=np.int32)  # req_to_token
    lengths = [0] * 8
    while sum(lengths) < 300:
        row = dice.randrange(8)
        if lengths[row] + page_size <= 64:
            rows[row, lengths[row] : lengths[row] + page_size] = allocator.alloc(page_size)
            lengths[row] += page_size
    node = rows[0, : lengths[0]].astype(np.int64)  # a tree node that shares row 0's slots
    lost = allocator.alloc(page_size)  # named by nobody that is told to defrag
    pool = np.arange(size + page_size) * 10
    tables = [rows[i, :n] for i, n in enumerate(lengths)]
    before = [pool[table].tolist() for table in tables]
    runs = sum(int((np.diff(table) != 1).sum()) for table in tables)
    moved = 0
    for _ in range(30):
        tgt, src = allocator.defrag(tables, [node], moves_max=16)
        assert not set(tgt.tolist()) & set(src.tolist())
        pool[tgt] = pool[src]
        moved += len(tgt) // page_size
        allocator.check()
        assert allocator.defrag_done() == len(tgt) // page_size
        assert [pool[table].tolist() for table in tables] == before
        assert pool[node].tolist() == before[0]
    after = sum(int((np.diff(table) != 1).sum()) for table in tables)
    assert moved > 0 and after < runs / 2
    allocator.free(np.concatenate(tables))
    allocator.free(lost)
    assert allocator.available_size() == size
    allocator.check()
    with pytest.raises(packstone.PageError):
        allocator.defrag([rows[0, :4]])
