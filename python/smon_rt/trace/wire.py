"""The wire format of protobuf, as far as the reader needs it: fields of a message, packed columns of varints.

A column of a million numbers is decoded by numpy, which no protobuf library for Python offers. Everything else of a
trace is small and goes through the generated classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

VARINT = 0
FIXED64 = 1
DELIMITED = 2
FIXED32 = 5

_LONGEST_VARINT_BYTES = 10


class WireError(ValueError):
    """Bytes that are no protobuf message."""


class Field(NamedTuple):
    """A field of a message: its value is `value` (VARINT), else the bytes from `start` to `end`."""

    number: int
    wire_type: int
    value: int
    start: int
    end: int


def read_varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    """The number at `position` and the position after it. Raises WireError where there is none before `end`."""
    value = 0
    for index in range(min(_LONGEST_VARINT_BYTES, end - position)):
        byte = data[position + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, position + index + 1
    raise WireError("a number is cut" if end - position < _LONGEST_VARINT_BYTES else "a number is too long")


def fields(data: bytes, start: int = 0, end: int | None = None) -> Iterator[Field]:
    """The fields of a message, in order. Raises WireError at the first byte that cannot be one."""
    position = start
    end = len(data) if end is None else end
    while position < end:
        tag, position = read_varint(data, position, end)
        number, wire_type = tag >> 3, tag & 7
        if number == 0:
            raise WireError("a field has number 0")
        value = 0
        if wire_type == VARINT:
            begin = position
            value, position = read_varint(data, position, end)
        elif wire_type == DELIMITED:
            length, begin = read_varint(data, position, end)
            position = begin + length
        elif wire_type == FIXED64:
            begin, position = position, position + 8
        elif wire_type == FIXED32:
            begin, position = position, position + 4
        else:
            raise WireError(f"field {number} has wire type {wire_type}")
        if position > end:
            raise WireError(f"field {number} is longer than its message")
        yield Field(number, wire_type, value, begin, position)


def decode_varints(data: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    """All numbers of packed columns laid end to end, and the position after each. Raises WireError."""
    if data.size == 0:
        return np.empty(0, np.uint64), np.empty(0, np.int64)
    is_last = data < 0x80
    if not is_last[-1]:
        raise WireError("a number is cut")
    if is_last.all():
        return data.astype(np.uint64), np.arange(1, data.size + 1)
    ends = np.flatnonzero(is_last) + 1
    starts = np.concatenate([np.zeros(1, ends.dtype), ends[:-1]])
    lengths = ends - starts
    longest = int(lengths.max())
    if longest > _LONGEST_VARINT_BYTES:
        raise WireError("a number is too long")
    values = (data[starts] & 0x7F).astype(np.uint64)
    rows = np.flatnonzero(lengths > 1)
    for index in range(1, longest):
        if index > 1:
            rows = rows[lengths[rows] > index]
        values[rows] |= (data[starts[rows] + index] & 0x7F).astype(np.uint64) << np.uint64(7 * index)
    return values, ends


def unzigzag(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Signed numbers from their zigzag form."""
    magnitudes: npt.NDArray[np.int64] = (values >> np.uint64(1)).view(np.int64)
    return np.asarray(magnitudes ^ -(values & np.uint64(1)).view(np.int64), np.int64)
