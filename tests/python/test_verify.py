# SPDX-License-Identifier: Apache-2.0
"""The CPU attention through Python, against NumPy in float64."""

import numpy as np
import packstone
import pytest
from packstone.sglang import merge_state, tree_verify

RNG = np.random.default_rng(7)


def to_bf16(values):
    """bf16 bits of float32, truncated: exact for what from_bf16 reads back."""
    return (np.asarray(values, dtype=np.float32).view(np.uint32) >> 16).astype(np.uint16)


def from_bf16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def attend(q, k, v, visible, scale):
    """out [heads, dim_v], lse [heads] of one query [heads, dim] over rows [n, dim]."""
    scores = np.where(visible[None, :], q @ k.T * scale, -np.inf)
    lse = np.log(np.exp(scores - scores.max(axis=1, keepdims=True)).sum(axis=1)) + scores.max(axis=1)
    return np.exp(scores - lse[:, None]) @ v, lse


@pytest.mark.parametrize("page_size", [1, 16])
def test_mla_tree(page_size):
    heads, prefix, parents = 4, [37, 0, 5], [[-1, 0, 0, 2], [-1], [-1, -1, 1]]
    nodes = [len(p) for p in parents]
    pages = [-(-(p + n) // page_size) for p, n in zip(prefix, nodes)]
    pool = to_bf16(RNG.standard_normal(((1 + sum(pages)) * page_size, 576)))
    order = RNG.permutation(np.arange(1, 1 + sum(pages), dtype=np.int32))
    table = np.zeros((3, max(pages)), dtype=np.int32)
    at = 0
    for b, count in enumerate(pages):
        table[b, :count] = order[at : at + count]
        at += count
    indptr = np.cumsum([0] + nodes).astype(np.int32)
    q = to_bf16(RNG.standard_normal((sum(nodes), heads, 576)))
    out, lse = packstone.reference_verify(
        q,
        pool,
        table,
        np.array(prefix, dtype=np.int32),
        indptr,
        page_size=page_size,
        parents=np.concatenate(parents).astype(np.int32),
        scale=0.04,
    )
    assert out.shape == (sum(nodes), heads, 512) and out.dtype == np.float32
    masks, slots = [], []
    for b in range(3):
        length = prefix[b] + nodes[b]
        token = np.arange(length)
        slots.append(table[b, token // page_size] * page_size + token % page_size)
        rows = from_bf16(pool[slots[b]])
        for j in range(nodes[b]):
            visible = token < prefix[b]
            node = j
            while node >= 0:
                visible[prefix[b] + node] = True
                node = parents[b][node]
            masks.append(visible)
            expected, expected_lse = attend(
                from_bf16(q[indptr[b] + j]), rows, rows[:, :512], visible, 0.04
            )
            np.testing.assert_allclose(out[indptr[b] + j], expected, rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(lse[indptr[b] + j], expected_lse, rtol=1e-5)

    # The same call with the argument shapes of SGLang's MLA backend, token indices and flat masks.
    if page_size == 1:
        sizes = [n * (p + n) for p, n in zip(prefix, nodes)]
        again, again_lse = tree_verify(
            q[..., :512],
            q[..., 512:],
            pool[:, None, :],
            np.cumsum([0] + [len(s) for s in slots]).astype(np.int32),
            np.concatenate(slots).astype(np.int64),
            indptr,
            np.concatenate(masks),
            np.cumsum([0] + sizes),
            sm_scale=0.04,
        )
        np.testing.assert_array_equal(again, out)
        np.testing.assert_array_equal(again_lse, lse)
        hidden = np.concatenate(masks)
        hidden[3] = False
        with pytest.raises(packstone.InvalidArgument, match="hides prefix"):
            tree_verify(
                q[..., :512],
                q[..., 512:],
                pool,
                np.cumsum([0] + [len(s) for s in slots]).astype(np.int32),
                np.concatenate(slots),
                indptr,
                hidden,
                np.cumsum([0] + sizes),
                sm_scale=0.04,
            )


def test_gqa_chain_in_float16():
    heads, kv_heads, dim, prefix, nodes = 8, 2, 64, 19, 3
    k = RNG.standard_normal((64, kv_heads, dim)).astype(np.float16)
    v = RNG.standard_normal((64, kv_heads, dim)).astype(np.float16)
    q = RNG.standard_normal((nodes, heads, dim)).astype(np.float16)
    slots = RNG.permutation(np.arange(1, 64))[: prefix + nodes].astype(np.int64)
    lens, indptr = np.array([prefix], dtype=np.int32), np.array([0, nodes], dtype=np.int32)
    out, lse = packstone.reference_verify(
        q, k, slots[None, :], lens, indptr, v=v, kind="gqa", scale=0.125
    )
    for j in range(nodes):
        visible = np.arange(prefix + nodes) <= prefix + j
        for h in range(heads):
            group = h // (heads // kv_heads)
            expected, expected_lse = attend(
                q[j, h : h + 1].astype(np.float64),
                k[slots, group].astype(np.float64),
                v[slots, group].astype(np.float64),
                visible,
                0.125,
            )
            np.testing.assert_allclose(out[j, h], expected[0], rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(lse[j, h], expected_lse[0], rtol=1e-5)

    # The prefix and the nodes apart, merged, are the whole.
    half = slots[: prefix // 2][None, :]
    rest = slots[prefix // 2 :][None, :]
    first = packstone.reference_verify(
        q, k, half, lens * 0 + prefix // 2, indptr, v=v, kind="gqa", scale=0.125, tail=False
    )
    second = packstone.reference_verify(
        q, k, rest, lens - prefix // 2, indptr, v=v, kind="gqa", scale=0.125
    )
    merged, merged_lse = merge_state(first[0], first[1], second[0], second[1])
    np.testing.assert_allclose(merged, out, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(merged_lse, lse, rtol=1e-6)


def test_what_does_not_fit_raises():
    q = to_bf16(RNG.standard_normal((1, 2, 576)))
    pool = to_bf16(RNG.standard_normal((8, 576)))
    lens, indptr = np.array([3], dtype=np.int32), np.array([0, 1], dtype=np.int32)
    table = np.array([[1, 2, 3, 4]], dtype=np.int32)
    packstone.reference_verify(q, pool, table, lens, indptr)
    with pytest.raises(packstone.InvalidArgument):
        packstone.reference_verify(q, pool, table[:, :2], lens, indptr)
    with pytest.raises(packstone.PageError):
        packstone.reference_verify(q, pool, table * 100, lens, indptr)
    with pytest.raises(packstone.InvalidArgument):
        packstone.reference_verify(q, pool.astype(np.float64), table, lens, indptr)
    with pytest.raises(packstone.InvalidArgument):
        packstone.reference_verify(q, pool, table, lens, indptr, kind="mha")
    with pytest.raises(packstone.TreeError) as fault:
        packstone.reference_verify(q, pool, table, lens, indptr, parents=np.zeros(1, dtype=np.int32))
    assert fault.value.node == 0
    with pytest.raises(packstone.InvalidArgument):
        packstone.reference_verify(q, pool, table, lens, np.array([0], dtype=np.int32))


def test_arrays_shorter_than_the_lengths_need_are_not_read_past_their_end():
    q = RNG.standard_normal((2, 2, 64)).astype(np.float16)
    k = RNG.standard_normal((8, 1, 64)).astype(np.float16)
    lens, indptr = np.array([2, 3], dtype=np.int32), np.array([0, 1, 2], dtype=np.int32)
    rows = np.array([1, 2, 3, 4, 5, 6, 7], dtype=np.int32)
    ends = np.array([0, 3, 7], dtype=np.int32)

    def verify(q=q, k=k, table=rows, v=k, **options):
        return packstone.reference_verify(q, k, table, lens, indptr, v=v, kind="gqa", **options)

    wide = np.full((2, 9), 999, dtype=np.int32)
    wide[0, :3], wide[1, :4] = rows[:3], rows[3:]
    bits = np.full((2, 5), 1, dtype=np.uint64)
    whole = verify(table_indptr=ends)[0]
    np.testing.assert_array_equal(verify(table=wide[:, :4], words=bits[:, :1])[0], whole)
    for wrong in (
        {"table": rows[:6], "table_indptr": ends},
        {"table": wide[:, :3]},  # sequence 1 needs four
        {"table": wide, "words": bits[:, :0]},
        {"table": wide, "words": bits[:1]},
        {"table": wide, "parents": np.full(1, -1, dtype=np.int32)},
        {"table": wide, "k": k[:, :, :32], "v": k[:, :, :32]},
        {"table": wide, "v": k[:, :, :32]},
        {"table": wide * 0, "k": k[:1, :, :16], "v": k[:1, :, :16]},
    ):
        with pytest.raises(packstone.InvalidArgument):
            verify(**wrong)
    mla = np.zeros((2, 2, 576), dtype=np.uint16)
    with pytest.raises(packstone.InvalidArgument):
        packstone.reference_verify(mla, mla[0, :1, :16], wide * 0, lens, indptr)


def two_sequences():
    """q [4, 2, 64], k [32, 1, 64], table [2, 12] of page size 1, and what goes with them."""
    k = RNG.standard_normal((32, 1, 64)).astype(np.float16)
    return {
        "q": RNG.standard_normal((4, 2, 64)).astype(np.float16),
        "k": k,
        "table": RNG.permutation(np.arange(1, 25, dtype=np.int32)).reshape(2, 12),
        "prefix_lens": np.array([9, 8], dtype=np.int32),
        "q_indptr": np.array([0, 1, 4], dtype=np.int32),
        "v": k,
        "kind": "gqa",
        "scale": 0.125,
    }


def among(array, fill):
    """`array` as a slice of rows that are wider and further apart."""
    wide = np.full((2 * array.shape[0] + 1, array.shape[1] + 3), fill, dtype=array.dtype)
    inside = wide[1::2, 2 : 2 + array.shape[1]]
    inside[:] = array
    assert not inside.flags.c_contiguous
    return inside


def test_slices_are_read_as_their_copies_are():
    call = two_sequences()
    words = np.array([[1], [1], [3], [7]], dtype=np.uint64)
    lists = np.array([[0, 3, -1], [7, 0, 2], [1, -1, -1], [5, 5, 4]], dtype=np.int32)
    for extra in ({"words": words}, {"sparse": lists}, {"words": words, "sparse": lists}):
        whole = packstone.reference_verify(**call, **extra)
        sliced = {name: among(array, 99) for name, array in extra.items()}
        again = packstone.reference_verify(
            **{**call, "table": among(call["table"], 999), "k": call["k"].copy()}, **sliced
        )
        np.testing.assert_array_equal(again[0], whole[0])
        np.testing.assert_array_equal(again[1], whole[1])
    # What no stride between rows can say is refused, and named.
    table = call["table"]
    for name, wrong in (
        ("table", np.asfortranarray(table)),
        ("table", np.repeat(table, 2, axis=1)[:, ::2]),
        ("table", table[::-1]),
        ("table", np.broadcast_to(table[:1], table.shape)),
        ("prefix_lens", np.array([9, 0, 8], dtype=np.int32)[::2]),
        ("words", np.asfortranarray(np.repeat(words, 2, axis=1))),
        ("sparse", np.broadcast_to(lists[:1], lists.shape)),
        ("sparse", lists[:, ::-1]),
    ):
        with pytest.raises(packstone.InvalidArgument, match=name):
            packstone.reference_verify(**{**call, name: wrong})


def test_sparse_lists_stand_in_for_the_prefix():
    call = two_sequences()
    lists = np.array([[8, -1, 0, 4], [-1, 3, 1, -1], [-1, -1, -1, -1], [6, 6, 2, 7]], dtype=np.int32)
    out, lse = packstone.reference_verify(**call, sparse=lists)
    by_slot = np.where(lists >= 0, np.take_along_axis(call["table"][[0, 1, 1, 1]], lists.clip(0), 1), -1)
    again = packstone.reference_verify(**call, sparse=by_slot, sparse_unit="slot")
    np.testing.assert_array_equal(again[0], out)
    np.testing.assert_array_equal(again[1], lse)
    for token, (b, node) in enumerate(((0, 0), (1, 0), (1, 1), (1, 2))):
        prefix = int(call["prefix_lens"][b])
        at = [t for t in lists[token] if t >= 0] + list(range(prefix, prefix + node + 1))
        rows = call["k"][call["table"][b, at], 0].astype(np.float64)
        expected, expected_lse = attend(
            call["q"][token].astype(np.float64), rows, rows, np.ones(len(at), dtype=bool), 0.125
        )
        np.testing.assert_allclose(out[token], expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(lse[token], expected_lse, rtol=1e-5)
    alone = packstone.reference_verify(**call, sparse=lists, tail=False)
    assert (alone[0][2] == 0).all() and (alone[1][2] == -np.inf).all()
    for wrong in (
        {"sparse": lists + 1},  # position 9 of a prefix of 9
        {"sparse": lists - 1},
        {"sparse": by_slot + 20, "sparse_unit": "slot"},
        {"sparse": lists[:3]},
        {"sparse": lists[:, :0]},
        {"sparse": lists.astype(np.int64)},
        {"sparse": lists, "sparse_unit": "page"},
    ):
        with pytest.raises(packstone.InvalidArgument, match="sparse"):
            packstone.reference_verify(**call, **wrong)


def test_an_empty_batch_gives_empty_results():
    q = np.zeros((0, 2, 64), dtype=np.float16)
    k = np.zeros((8, 1, 64), dtype=np.float16)
    none = np.zeros(0, dtype=np.int32)
    table = np.zeros((0, 3), dtype=np.int32)
    out, lse = packstone.reference_verify(
        q, k, table, none, np.zeros(1, dtype=np.int32), v=k, kind="gqa"
    )
    assert out.shape == (0, 2, 64) and lse.shape == (0, 2)
