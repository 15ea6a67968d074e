# SPDX-License-Identifier: Apache-2.0
"""torch tensors: on the CPU wherever torch is, on a CUDA device by the kernels where there is one and
packstone was built with its CUDA half."""

import numpy as np
import packstone
import pytest
from contract_model import ContractModel
from packstone import _attention
from packstone.sglang import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator, merge_state, tree_verify

torch = pytest.importorskip("torch", reason="torch is not installed")


def missing_device():
    if not torch.cuda.is_available():
        return "no CUDA device"
    return "" if packstone.has_cuda else "this build of packstone has no CUDA half"


on_device = pytest.mark.skipif(bool(missing_device()), reason=missing_device())
DEVICES = ["cpu", pytest.param("cuda", marks=on_device)]

PARENTS = [[-1, 0, 0, 2, 1], [-1], [-1, -1, 1], [-1, 0, 1, 2, 3, 4, 5]]
PREFIX = [137, 0, 64, 700]
HEADS = 16


class Case:
    """A batch of trees over a scattered pool, in the argument shapes of SGLang's MLA backend."""

    def __init__(self, page_size, device, seed=5, dtype=torch.bfloat16):
        generator = torch.Generator().manual_seed(seed)
        nodes = [len(parents) for parents in PARENTS]
        lengths = [p + n for p, n in zip(PREFIX, nodes)]
        pages = [-(-length // page_size) for length in lengths]
        order = 1 + torch.randperm(sum(pages), generator=generator)
        masks = []
        for prefix, parents in zip(PREFIX, PARENTS):
            mask = torch.zeros(len(parents), prefix + len(parents), dtype=torch.bool)
            mask[:, :prefix] = True
            for node in range(len(parents)):
                above = node
                while above >= 0:
                    mask[node, prefix + above] = True
                    above = parents[above]
            masks.append(mask.reshape(-1))

        def offsets(counts):
            return torch.tensor([0, *np.cumsum(counts)], dtype=torch.int32)

        def random(*shape):
            return torch.randn(*shape, generator=generator).to(dtype)

        self.host = {
            "q_nope": random(sum(nodes), HEADS, 512),
            "q_rope": random(sum(nodes), HEADS, 64),
            "kv_buffer": random((1 + sum(pages)) * page_size, 1, 576),
            "kv_indptr": offsets(pages),
            "kv_indices": order.to(torch.int64),
            "qo_indptr": offsets(nodes),
            "custom_mask": torch.cat(masks),
            "mask_indptr": offsets([len(mask) for mask in masks]).to(torch.int64),
        }
        self.arguments = {name: each.to(device) for name, each in self.host.items()}
        self.options = {"sm_scale": 576**-0.5, "page_size": page_size}

    def verify(self, **options):
        return tree_verify(**self.arguments, **self.options, **options)

    def expected(self):
        """The same by the CPU reference, from NumPy arrays."""
        bits = ("q_nope", "q_rope", "kv_buffer")
        arrays = {
            name: each.view(torch.int16).numpy().view(np.uint16) if name in bits else each.numpy()
            for name, each in self.host.items()
        }
        return tree_verify(**arrays, **self.options)


def close(got, expected):
    """Within what bf16 products summed in float32 and probabilities in bf16 give."""
    np.testing.assert_allclose(got[0].float().cpu().numpy(), expected[0], rtol=2e-2, atol=4e-3)
    np.testing.assert_allclose(got[1].cpu().numpy(), expected[1], rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("page_size", [1, 16])
def test_tree_verify(device, page_size):
    case = Case(page_size, device)
    out, lse = case.verify()
    assert out.device.type == lse.device.type == device
    assert out.dtype == lse.dtype == torch.float32
    close((out, lse), case.expected())


@pytest.mark.parametrize("device", DEVICES)
def test_a_chain_needs_no_mask(device):
    case = Case(1, device)
    chain = {"custom_mask": None, "mask_indptr": None}
    case.arguments.update(chain)
    got = case.verify()
    parents = [np.tril(np.ones((len(p), len(p)), dtype=bool)) for p in PARENTS]
    masks = [
        np.concatenate((np.ones((len(m), prefix), dtype=bool), m), axis=1).reshape(-1)
        for prefix, m in zip(PREFIX, parents)
    ]
    case.host["custom_mask"] = torch.from_numpy(np.concatenate(masks))
    close(got, case.expected())


def test_mask_words_are_those_of_the_host():
    case = Case(1, "cpu")
    host = case.host
    nodes = np.array([len(parents) for parents in PARENTS])
    prefix = np.array(PREFIX)
    expected = _attention._mask_words(
        host["custom_mask"].numpy(), host["mask_indptr"].numpy(), prefix, nodes, int(nodes.sum())
    )
    lengths = torch.tensor(prefix + nodes)
    rows = (host["qo_indptr"], torch.tensor(PREFIX), lengths, host["mask_indptr"])
    for q_len_max in (7, 64, 65):
        words = _attention._mask_words_on_device(
            host["custom_mask"], rows, int(nodes.sum()) + 3, q_len_max
        )
        got = words.numpy().view(np.uint64)[: nodes.sum()]
        np.testing.assert_array_equal(got[:, :1], expected)
        assert not got[:, 1:].any()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_merge_state(device, dtype):
    generator = torch.Generator().manual_seed(1)
    parts = [torch.randn(9, 4, 128, generator=generator).to(dtype) for _ in range(2)]
    lse = [torch.randn(9, 4, generator=generator) for _ in range(2)]
    lse[0][3] = -torch.inf
    lse[0][5] = lse[1][5] = -torch.inf
    arguments = [each.to(device) for each in (parts[0], lse[0], parts[1], lse[1])]
    v, s = merge_state(*arguments)
    weights = torch.softmax(torch.stack(lse), dim=0).nan_to_num()
    expected = sum(w[..., None] * part.float() for w, part in zip(weights, parts))
    torch.testing.assert_close(v.float().cpu(), expected, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(s.cpu(), torch.logsumexp(torch.stack(lse), dim=0))
    assert v.device.type == device and (v.dtype == dtype or device == "cpu")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("page_size", [1, 16])
def test_allocators_hand_out_tensors(device, page_size):
    kind = TokenToKVPoolAllocator if page_size == 1 else PagedTokenToKVPoolAllocator
    sizes = (64 * page_size,) if page_size == 1 else (64 * page_size, page_size)
    allocator = kind(*sizes, torch.float16, device, None, False)
    model = ContractModel(64 * page_size, page_size, False)
    for tokens in (8, 16, 4):
        slots = allocator.alloc(tokens * page_size)
        expected = model.alloc(tokens * page_size)
        assert slots.device.type == device and slots.dtype == torch.int64
        assert slots.tolist() == expected
        allocator.free(slots[: 3 * page_size])
        model.free(expected[: 3 * page_size])
    assert allocator.free_pages.tolist() == list(model.free_pages)
    allocator.check()


@on_device
def test_out_may_be_given_and_views_are_read_in_place():
    case = Case(1, "cuda")
    whole = torch.cat((case.arguments["q_nope"], case.arguments["q_rope"]), dim=-1)
    case.arguments["q_nope"], case.arguments["q_rope"] = whole[..., :512], whole[..., 512:]
    assert _attention._joined(whole[..., :512], whole[..., 512:]).data_ptr() == whole.data_ptr()
    out = torch.empty(whole.shape[0], HEADS, 512, dtype=torch.bfloat16, device="cuda")
    result, lse = case.verify(out=out, max_q_len=8, max_kv_len=1024)
    assert result is out
    close((out, lse), case.expected())


@on_device
def test_the_current_stream_is_honoured_and_nothing_waits():
    case = Case(1, "cuda")
    ready = case.arguments["kv_buffer"].clone()
    close(case.verify(), case.expected())  # whatever is slow the first time has been done
    case.arguments["kv_buffer"].zero_()
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        case.arguments["kv_buffer"].copy_(ready)
        got = case.verify()
        assert not stream.query()  # the call returned long before its work
    stream.synchronize()
    close(got, case.expected())
    # A stream that is named counts as much as the current one.
    case.arguments["kv_buffer"].zero_()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        case.arguments["kv_buffer"].copy_(ready)
    got = case.verify(stream=stream)
    assert not stream.query()
    stream.synchronize()
    close(got, case.expected())


@on_device
def test_a_call_is_captured_once_and_replayed_with_other_content():
    page_size = 16
    cases = [Case(page_size, "cuda", seed) for seed in (1, 2, 3)]
    first = cases[0].arguments
    q = torch.cat((first["q_nope"], first["q_rope"]), dim=-1)
    pool = first["kv_buffer"].view(-1, 576).clone()
    nodes = torch.tensor([len(parents) for parents in PARENTS])
    prefix = torch.tensor(PREFIX, dtype=torch.int32, device="cuda")
    indptr, table_indptr = first["qo_indptr"].clone(), first["kv_indptr"].clone()
    table = first["kv_indices"].clone()
    parents = torch.tensor(sum(PARENTS, []), dtype=torch.int32, device="cuda")
    tokens = int(nodes.sum())
    out = torch.zeros(tokens, HEADS, 512, dtype=torch.bfloat16, device="cuda")
    lse = torch.zeros(tokens, HEADS, device="cuda")
    call = packstone.VerifyCall(
        q,
        pool,
        table,
        prefix,
        indptr,
        out,
        lse,
        table_indptr=table_indptr,
        page_size=page_size,
        parents=parents,
        scale=576**-0.5,
    )
    verify = packstone.TreeVerify(len(PARENTS), tokens, 8, 1024)
    workspace = torch.empty(verify.workspace_bytes(call), dtype=torch.uint8, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        verify.run(call, workspace, torch.cuda.current_stream().cuda_stream)
    for case in cases:
        given = case.arguments
        q.copy_(torch.cat((given["q_nope"], given["q_rope"]), dim=-1))
        pool.copy_(given["kv_buffer"].view(-1, 576))
        table.copy_(given["kv_indices"])
        graph.replay()
        torch.cuda.synchronize()
        close((out, lse), case.expected())
    out.zero_()
    # As the next layer of a model: the schedule is the replay's.
    verify.run(call, workspace, torch.cuda.current_stream().cuda_stream, reuse_schedule=True)
    torch.cuda.synchronize()
    close((out, lse), case.expected())
    with pytest.raises(packstone.InvalidArgument, match="bytes of scratch"):
        verify.run(call, workspace[:256], torch.cuda.current_stream().cuda_stream)


@on_device
@pytest.mark.parametrize("extra", ["chain", "words", "sparse"])
def test_gqa_on_the_device(extra):
    heads, kv_heads, dim, prefix, nodes = 8, 2, 128, 300, 4
    generator = torch.Generator().manual_seed(3)
    k, v = (torch.randn(512, kv_heads, dim, generator=generator).half() for _ in range(2))
    q = torch.randn(nodes, heads, dim, generator=generator).half()
    table = (1 + torch.randperm(511, generator=generator)[None, : prefix + nodes]).to(torch.int32)
    lens, indptr = torch.tensor([prefix]).int(), torch.tensor([0, nodes]).int()
    options = {"kind": "gqa", "scale": dim**-0.5}
    # Slices of wider rows, read where they lie.
    wide = torch.randint(0, prefix, (nodes, 9), generator=generator).int()
    arrays = {
        "words": torch.tensor([[1, -1], [3, -1], [5, -1], [15, -1]])[:, :1],
        "sparse": wide[:, 1:8],
    }
    arrays = {name: array for name, array in arrays.items() if name == extra}
    expected = packstone.reference_verify(q, k, table, lens, indptr, v=v, **options, **arrays)
    out = torch.empty(nodes, heads, dim, dtype=torch.float16, device="cuda")
    lse = torch.empty(nodes, heads, device="cuda")
    given = [each.cuda() for each in (q, k, table, lens, indptr)]
    bases = {"words": 2, "sparse": 9}
    for name, array in arrays.items():
        apart = torch.full((nodes, bases[name]), -1, dtype=array.dtype, device="cuda")
        at = apart[:, : array.shape[1]]
        at.copy_(array)
        options[name] = at
    call = packstone.VerifyCall(*given, out, lse, v=v.cuda(), **options)
    verify = packstone.TreeVerify(1, nodes, nodes, 512)
    workspace = torch.empty(verify.workspace_bytes(call), dtype=torch.uint8, device="cuda")
    verify.run(call, workspace, torch.cuda.current_stream().cuda_stream)
    torch.cuda.synchronize()
    close((out, lse), expected)


@on_device
@pytest.mark.parametrize("page_size", [1, 8])
def test_pages_move_and_are_renamed(page_size):
    pages = 40
    planes = [
        torch.randn(pages * page_size, 1, 576, device="cuda").bfloat16(),
        torch.randn(pages * page_size, 132, device="cuda"),
    ]
    before = [plane.clone() for plane in planes]
    table = torch.tensor([[30, 31, 7, 0], [7, 12, 0, 0]], dtype=torch.int32, device="cuda")
    slots = torch.tensor([31, 7, -1], device="cuda") * page_size
    compactor = packstone.Compactor(planes, page_size, [(table, "pages"), (slots, "slots")])
    stream = torch.cuda.current_stream().cuda_stream
    moves = np.array([[30, 1], [31, 2]], dtype=np.int32)
    assert compactor.compact(moves[:, 0], moves[:, 1], stream)
    assert compactor.copy(np.array([7]), np.array([20]), stream)
    assert table.tolist() == [[1, 2, 7, 0], [7, 12, 0, 0]]
    assert slots.tolist() == [2 * page_size, 7 * page_size, -page_size]
    for plane, old in zip(planes, before):
        got, old = (each.view(pages, page_size, -1) for each in (plane, old))
        for source, target in [(30, 1), (31, 2), (7, 20)]:
            assert torch.equal(got[target], old[source])
        assert torch.equal(got[3:20], old[3:20])
    with pytest.raises(packstone.PageError):
        compactor.compact(np.array([3]), np.array([pages]), stream)
    with pytest.raises(packstone.InvalidArgument):
        packstone.Compactor([planes[0], planes[1][1:]], page_size)


@on_device
def test_what_does_not_fit_on_the_device_raises():
    case = Case(1, "cuda")
    case.arguments["kv_buffer"] = case.host["kv_buffer"]
    with pytest.raises(packstone.InvalidArgument, match="k is not on CUDA device"):
        case.verify()
    case = Case(1, "cuda")
    with pytest.raises(packstone.InvalidArgument, match="page_size > 1"):
        tree_verify(**{**case.arguments, "custom_mask": None}, sm_scale=1.0, page_size=16)
    with pytest.raises(packstone.InvalidArgument):
        case.verify(out=torch.empty(3, HEADS, 512, device="cuda"))
    with pytest.raises(packstone.InvalidArgument, match="in host memory"):
        packstone.reference_verify(
            torch.zeros(1, 2, 576, dtype=torch.bfloat16, device="cuda"),
            case.arguments["kv_buffer"].view(-1, 576),
            case.arguments["kv_indices"][None, :4],
            torch.tensor([3]).int().cuda(),
            torch.tensor([0, 1]).int().cuda(),
        )
