"""Hashes of contents as csrc/agent/content_hash.cc makes them: XXH3-64 of each chunk, and of these together."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Protocol

from smon_rt.errors import SmonError

CHUNK_BYTES = 4 << 20


class Xxh3(Protocol):
    def __call__(self, data: bytes, /) -> int: ...


def xxh3_64() -> Xxh3:
    """The hash function.

    Raises:
        SmonError: the package that has it is not installed.
    """
    try:
        import xxhash
    except ImportError:
        raise SmonError(
            "the bytes of checkpoints are checked by XXH3, which needs the package xxhash: "
            "pip install 'smon-rt[checkpoint]'"
        ) from None
    return xxhash.xxh3_64_intdigest


def hash_of_chunks(xxh3: Xxh3, chunk_hashes: Sequence[int]) -> int:
    return max(1, xxh3(struct.pack(f"<{len(chunk_hashes)}Q", *chunk_hashes)))


def chunk_count(content_bytes: int) -> int:
    return -(-content_bytes // CHUNK_BYTES)
