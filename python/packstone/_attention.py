# SPDX-License-Identifier: Apache-2.0
"""Attention by the argument shapes of SGLang's MLA backend: the CPU reference for host arrays, the
kernels for torch tensors on a CUDA device."""

from __future__ import annotations

import numpy as np

from . import _packstone

LATENT = 512


def _torch():
    import torch

    return torch


def _is_torch(values):
    return type(values).__module__.split(".")[0] == "torch"


def _on_device(values):
    return _is_torch(values) and values.device.type == "cuda"


def _stream_of(device, stream):
    """The stream as an int: the one named, or torch's current one on the device."""
    if stream is None:
        return _torch().cuda.current_stream(device).cuda_stream
    return stream if isinstance(stream, int) else stream.cuda_stream


def _require_cuda_build():
    if not _packstone.has_cuda:
        raise _packstone.InvalidArgument(
            "tensors on a CUDA device, but this build of packstone has no CUDA half; build it with "
            "pip install . --config-settings=cmake.define.PACKSTONE_CUDA=ON"
        )


def merge_state(v_a, s_a, v_b, s_b, *, stream=None):
    """Merges two partial attentions of the same rows over disjoint tokens; (v, s).

    v: [tokens, heads, dim]; s: [tokens, heads] float32, log-sum-exp, natural base.
    A row with s = -inf on one side is the other side's.
    Torch tensors on a CUDA device (v: bf16, float16 or float32, contiguous) are merged there, in
    order of `stream` (a torch stream or a cudaStream_t as int; None: torch's current one), into new
    tensors of the same types; nothing is copied or waited for. Everything else is merged on the
    CPU, to float32.
    """
    if _on_device(v_a):
        return _merge_on_device(v_a, s_a, v_b, s_b, stream)
    parts = [_float32(v_a), _float32(v_b)]
    tokens, heads, dim = parts[0].shape
    lse = np.stack([_float32(s_a).reshape(-1), _float32(s_b).reshape(-1)])
    out = np.stack([part.reshape(tokens * heads, dim) for part in parts])
    v, s = _packstone.reference_merge(out, lse)
    return _as_given(v.reshape(tokens, heads, dim), v_a), _as_given(s.reshape(tokens, heads), s_a)


def _merge_on_device(v_a, s_a, v_b, s_b, stream):
    _require_cuda_build()
    torch = _torch()
    v = torch.empty_like(v_a, memory_format=torch.contiguous_format)
    s = torch.empty_like(s_a, memory_format=torch.contiguous_format)
    dim = v_a.shape[-1]
    _packstone.merge_states(
        v_a.view(-1, dim),
        s_a.view(-1),
        v_b.view(-1, dim),
        s_b.view(-1),
        v.view(-1, dim),
        s.view(-1),
        _stream_of(v_a.device, stream),
    )
    return v, s


def tree_verify(
    q_nope,
    q_rope,
    kv_buffer,
    kv_indptr,
    kv_indices,
    qo_indptr,
    custom_mask=None,
    mask_indptr=None,
    *,
    sm_scale,
    logit_cap=0.0,
    page_size=1,
    k_scale=1.0,
    out=None,
    lse=None,
    max_q_len=None,
    max_kv_len=None,
    stream=None,
):
    """Tree verify with the argument shapes of SGLang's MLA backend; (out, lse).

    q_nope: [tokens, heads, 512], q_rope: [tokens, heads, 64], bf16 or float16.
    kv_buffer: [slots, 1, 576] or [slots, 576]; a node's row is in the pool like a prefix token's.
    kv_indptr: int32 [batch + 1], kv_indices: int [kv_indptr[-1]], slots of prefix and nodes in
    order (page_size > 1: pages). qo_indptr: int32 [batch + 1].
    custom_mask: bool [sum of nodes * (prefix + nodes)], row-major, True: visible; mask_indptr
    [batch + 1] its offsets. A prefix column must be visible: that is what tree verify means. On
    the CPU a hidden one raises InvalidArgument; on a device those columns are not looked at.
    None: the nodes are a chain.
    out: [tokens, heads, 512], float32; lse: [tokens, heads], float32, natural log.

    With torch tensors on a CUDA device the kernels run, in order of `stream` (a torch stream or a
    cudaStream_t as int; None: torch's current one). Nothing is waited for, and every array is read
    in place, but for q: its parts are concatenated unless they already lie in one row of 576. `out`
    (bf16, float16 or float32) and `lse` may then be given, to be written to. max_q_len: nodes of
    the largest tree (None: tokens); max_kv_len: tokens of the longest sequence (None: as many as
    kv_indices names); both are promises that bound the scratch memory and, with a mask, its words.
    A server that captures graphs keeps a VerifyCall and a TreeVerify instead.
    """
    call = {"sm_scale": sm_scale, "logit_cap": logit_cap, "page_size": page_size, "k_scale": k_scale}
    arrays = (q_nope, q_rope, kv_buffer, kv_indptr, kv_indices, qo_indptr, custom_mask, mask_indptr)
    if page_size > 1 and custom_mask is None:
        raise _packstone.InvalidArgument("page_size > 1 needs a mask, which tells the lengths")
    if _on_device(q_nope):
        return _verify_on_device(arrays, call, out, lse, max_q_len, max_kv_len, stream)
    if out is not None or lse is not None:
        raise _packstone.InvalidArgument("out and lse are for tensors on a CUDA device")
    return _verify_on_host(arrays, **call)


def _verify_on_host(arrays, *, sm_scale, logit_cap, page_size, k_scale):
    q_nope, q_rope, kv_buffer, kv_indptr, kv_indices, qo_indptr, custom_mask, mask_indptr = arrays
    q = np.concatenate((_bits(q_nope), _bits(q_rope)), axis=-1)
    kv = _bits(kv_buffer)
    kv = kv.reshape(kv.shape[0], kv.shape[-1])
    kv_offsets = np.asarray(_to_numpy(kv_indptr), dtype=np.int32)
    q_offsets = np.asarray(_to_numpy(qo_indptr), dtype=np.int32)
    nodes = np.diff(q_offsets).astype(np.int64)
    if page_size == 1:
        lengths = np.diff(kv_offsets).astype(np.int64)
    else:
        sizes = np.diff(np.asarray(_to_numpy(mask_indptr), dtype=np.int64))
        lengths = np.where(nodes > 0, sizes // np.maximum(nodes, 1), 0)
    prefix = (lengths - nodes).astype(np.int32)
    options = {"mask": "causal"}
    if custom_mask is not None:
        options = {"words": _mask_words(custom_mask, mask_indptr, prefix, nodes, q.shape[0])}
    out, lse = _packstone.reference_verify(
        q,
        kv,
        np.ascontiguousarray(_to_numpy(kv_indices)),
        prefix,
        q_offsets,
        table_indptr=kv_offsets,
        kind="mla",
        page_size=page_size,
        scale=sm_scale,
        logit_cap=logit_cap,
        k_scale=k_scale,
        **options,
    )
    return _as_given(out, q_nope), _as_given(lse, q_nope)


def _verify_on_device(arrays, call, out, lse, max_q_len, max_kv_len, stream):
    q_nope, q_rope, kv_buffer, kv_indptr, kv_indices, qo_indptr, custom_mask, mask_indptr = arrays
    _require_cuda_build()
    torch = _torch()
    tokens, heads, _ = q_nope.shape
    batch = qo_indptr.shape[0] - 1
    number = _stream_of(q_nope.device, stream)
    # What is computed before the call is computed on the same stream.
    with torch.cuda.stream(torch.cuda.ExternalStream(number, device=q_nope.device)):
        q = _joined(q_nope, q_rope)
        qo_indptr, kv_indptr = qo_indptr.to(torch.int32), kv_indptr.to(torch.int32)
        nodes = qo_indptr[1:] - qo_indptr[:-1]
        lengths = kv_indptr[1:] - kv_indptr[:-1]
        if call["page_size"] > 1:
            lengths = (mask_indptr[1:] - mask_indptr[:-1]) // nodes.clamp(min=1)
        prefix = (lengths - nodes).to(torch.int32)
        q_len_max = tokens if max_q_len is None else max_q_len
        masks = {"mask": "causal"}
        if custom_mask is not None:
            rows = (qo_indptr, prefix, lengths, mask_indptr)
            masks = {"words": _mask_words_on_device(custom_mask, rows, tokens, q_len_max)}
        if out is None:
            out = torch.empty((tokens, heads, LATENT), dtype=torch.float32, device=q.device)
        if lse is None:
            lse = torch.empty((tokens, heads), dtype=torch.float32, device=q.device)
        verify_call = _packstone.VerifyCall(
            q,
            kv_buffer.view(kv_buffer.shape[0], kv_buffer.shape[-1]),
            kv_indices,
            prefix,
            qo_indptr,
            out,
            lse,
            table_indptr=kv_indptr,
            kind="mla",
            page_size=call["page_size"],
            scale=call["sm_scale"],
            logit_cap=call["logit_cap"],
            k_scale=call["k_scale"],
            **masks,
        )
        verify = _packstone.TreeVerify(
            batch,
            tokens,
            q_len_max,
            kv_indices.shape[0] * call["page_size"] if max_kv_len is None else max_kv_len,
            device=q.device.index,
        )
        workspace = torch.empty(
            verify.workspace_bytes(verify_call), dtype=torch.uint8, device=q.device
        )
        verify.run(verify_call, workspace, number)
    return out, lse


def _joined(q_nope, q_rope):
    """[tokens, heads, 576]: the parts where they lie side by side, else a concatenation."""
    torch = _torch()
    beside = (
        q_nope.stride() == q_rope.stride()
        and q_nope.stride(-1) == 1
        and q_rope.data_ptr() == q_nope.data_ptr() + LATENT * q_nope.element_size()
        and q_rope.dtype == q_nope.dtype
    )
    if not beside:
        return torch.cat((q_nope, q_rope), dim=-1)
    shape = (*q_nope.shape[:-1], LATENT + q_rope.shape[-1])
    return q_nope.as_strided(shape, q_nope.stride())


def _mask_words_on_device(custom_mask, rows, tokens, q_len_max):
    """The node columns of the flat masks as bits, int64 [tokens, words], without waiting."""
    torch = _torch()
    qo_indptr, prefix, lengths, mask_indptr = rows
    device = custom_mask.device
    token = torch.arange(tokens, device=device)
    # Tokens behind the last sequence belong to none; they read some mask and are not computed.
    offsets = qo_indptr.to(torch.int64)
    row = (torch.searchsorted(offsets, token, right=True) - 1).clamp(max=prefix.shape[0] - 1)
    words = (q_len_max + 63) // 64
    column = torch.arange(words * 64, device=device)
    at = mask_indptr.to(torch.int64)[row] + (token - offsets[row]) * lengths[row] + prefix[row]
    at = (at[:, None] + column).clamp(0, custom_mask.shape[0] - 1)
    inside = column < (offsets[row + 1] - offsets[row])[:, None]
    bits = (custom_mask[at].to(torch.bool) & inside).view(tokens, words, 64)
    # Bit 63 is the sign; the sum of distinct bits is their union.
    return (bits.to(torch.int64) << torch.arange(64, device=device)).sum(dim=-1)


def _to_numpy(values):
    if isinstance(values, np.ndarray):
        return values
    if _is_torch(values):
        return values.detach().cpu().numpy()
    return np.from_dlpack(values) if hasattr(values, "__dlpack__") else np.asarray(values)


def _as_given(result, like):
    """A NumPy result in the kind of array that the caller works with."""
    return _torch().from_numpy(result) if _is_torch(like) else result


def _float32(values):
    if _is_torch(values):
        values = values.detach().float().numpy()
    return np.ascontiguousarray(_to_numpy(values), dtype=np.float32)


def _bits(values):
    """bf16 as uint16, bytes as uint8, everything else as it is: what NumPy can hold."""
    if _is_torch(values):
        torch = _torch()
        values = values.detach().contiguous()
        if values.dtype == torch.bfloat16:
            return values.view(torch.int16).numpy().view(np.uint16)
        if values.element_size() == 1:
            return values.view(torch.uint8).numpy()
        return values.numpy()
    return np.ascontiguousarray(values)


def _mask_words(custom_mask, mask_indptr, prefix, nodes, tokens):
    """The node columns of the flat masks as bits: uint64 [tokens, words]."""
    flat = _to_numpy(custom_mask)
    offsets = _to_numpy(mask_indptr)
    words = (int(nodes.max(initial=1)) + 63) // 64
    bits = np.zeros((tokens, max(words, 1) * 64), dtype=bool)
    row = 0
    for b, count in enumerate(nodes):
        shape = (int(count), int(prefix[b] + count))
        mask = flat[offsets[b] : offsets[b] + shape[0] * shape[1]].reshape(shape).astype(bool)
        if not mask[:, : prefix[b]].all():
            raise _packstone.InvalidArgument(f"custom_mask hides prefix tokens of sequence {b}")
        bits[row : row + count, :count] = mask[:, prefix[b] :]
        row += int(count)
    return np.packbits(bits, axis=1, bitorder="little").view(np.uint64)
