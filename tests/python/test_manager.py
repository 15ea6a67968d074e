# SPDX-License-Identifier: Apache-2.0
import threading

import numpy as np
import packstone
import pytest


class Exporter:
    """A foreign tensor: nothing but DLPack, as a framework's would be."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __len__(self):
        return len(self.array)


def test_life_of_a_sequence():
    manager = packstone.KvManager(17, page_size=4, policy="fifo")
    a = manager.create()
    manager.append(a, 8)
    assert manager.pages(a).tolist() == [1, 2] and manager.pages(a).dtype == np.int32
    b = manager.create(prefix=manager.pages(a), owner=5)
    assert manager.length(b) == 8
    assert manager.extend([(a, 10), (b, 9)]).tolist() == [12, 13, 16]
    assert manager.decode([a, b]).tolist() == [14, 17]
    assert manager.slots(a, 7, 3).tolist() == [11, 12, 13]
    c = manager.fork(b, 10)
    manager.append(c, 1)
    assert manager.take_copies() == [(4, 5, 2)] and manager.take_copies() == []
    manager.reserve(a, 6)
    manager.commit(a, 2)
    assert (manager.trim(a), manager.length(a)) == (1, 13)
    manager.truncate(a, 9)
    manager.finish(c)
    assert not manager.alive(c) and manager.sequences == [a, b] and len({a, b, c}) == 3
    assert manager.statistics["forks"] == 1
    manager.check()


def test_shortage_and_mistakes_change_nothing():
    manager = packstone.KvManager(5, page_size=2, sequences_max=1)
    a = manager.create()
    digest = manager.digest
    with pytest.raises(packstone.OutOfPages):
        manager.append(a, 9)
    with pytest.raises(packstone.OutOfSequences):
        manager.create()
    with pytest.raises(packstone.InvalidArgument) as wrong:
        manager.append(a, -1)
    assert isinstance(wrong.value, ValueError) and isinstance(wrong.value, packstone.Error)
    with pytest.raises(packstone.InvalidArgument):
        packstone.KvManager(0)
    with pytest.raises(packstone.InvalidArgument):
        packstone.KvManager(8, policy="best")
    assert manager.digest == digest and manager.length(a) == 0
    manager.finish(a)
    with pytest.raises(packstone.SequenceError) as stale:
        manager.append(a, 1)
    assert stale.value.seq == a


def test_page_allocator():
    allocator = packstone.PageAllocator(9, policy="fifo")
    pages = allocator.alloc(8, owner=7)
    assert pages.tolist() == list(range(1, 9))
    allocator.retain(pages[:2])
    assert allocator.free(pages) == 6
    with pytest.raises(packstone.PageError) as fault:
        allocator.free(pages[4:5])
    assert (fault.value.page, fault.value.owner, fault.value.kind) == (5, 7, "not_live")
    allocator.pin(1)
    with pytest.raises(packstone.PageError):
        allocator.unpin(2)
    allocator.unpin(1)
    with pytest.raises(packstone.OutOfPages):
        allocator.alloc((1 << 31) - 1)
    assert allocator.counts == {"free": 6, "reserved": 0, "live": 2, "retired": 0}
    allocator.clear()
    allocator.check()


def test_checkpoint_goes_to_another_manager():
    manager = packstone.KvManager(9, page_size=4)
    a = manager.create()
    manager.append(a, 10)
    saved = manager.checkpoint()
    other = packstone.KvManager(9, page_size=4)
    other.restore(saved)
    assert other.digest == manager.digest and other.length(a) == 10
    with pytest.raises(packstone.InvalidArgument):
        packstone.KvManager(2, page_size=4).restore(saved)


def test_any_dlpack_exporter_of_any_stride_is_read_in_place():
    allocator = packstone.PageAllocator(9, policy="fifo")
    allocator.alloc(8)
    wide = np.array([1, 99, 3, 99, 5], dtype=np.int64)
    assert allocator.free(Exporter(wide[::2])) == 3
    assert allocator.free(wide[1:3:2].astype(np.int32) * 0 + 2) == 1
    with pytest.raises(packstone.InvalidArgument):
        allocator.free(np.array([1.5]))
    with pytest.raises(TypeError):
        allocator.free("pages")
    with pytest.raises(packstone.PageError):
        allocator.free(np.array([1 << 31 - 1], dtype=np.int64))


def test_long_calls_release_the_lock():
    """A check of a large pool runs while another Python thread counts."""
    manager = packstone.KvManager(40_000_000)
    counted = 0
    done = threading.Event()

    def check():
        manager.check()
        done.set()

    thread = threading.Thread(target=check)
    thread.start()
    while not done.is_set():
        counted += 1
    thread.join()
    assert counted > 1000


def test_stub_and_docstrings():
    from pathlib import Path

    folder = Path(packstone.__file__).parent
    assert (folder / "py.typed").exists()
    stub = (folder / "_packstone.pyi").read_text()
    for name in ("class KvManager", "class PageAllocator", "def reference_verify"):
        assert name in stub
    assert "Raises OutOfPages" in packstone.KvManager.decode.__doc__
