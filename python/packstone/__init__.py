# SPDX-License-Identifier: Apache-2.0
"""packstone keeps an LLM server's KV cache packed.

The manager, the allocator and the CPU attention of the C++ library. Arrays go in by NumPy or
DLPack without copies and come out as NumPy arrays; nothing of that needs a GPU. A build with the
CUDA half (`has_cuda`) also has TreeVerify, VerifyCall, merge_states and Compactor, which work on
tensors of a CUDA device, in order of the stream that they are given. A shortage raises
OutOfPages or OutOfSequences and consumed nothing; a mistake raises InvalidArgument, PageError,
SequenceError or TreeError and changed nothing.

`packstone.sglang` has allocators with the contract of SGLang's.
"""

from . import _packstone
from ._packstone import *  # noqa: F401,F403
from ._packstone import __version__

__all__ = [name for name in dir(_packstone) if not name.startswith("_")] + ["__version__"]
