"""The packets of a trace file, one by one, with their checksums; what is damaged is passed over and said.

A file is one protobuf message, `repeated TracePacket packet = 1`. It is taken apart by hand, since a protobuf library
reads all of it or nothing, and a trace must be readable while it is written, after it was cut, and around a bad sector.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from smon_rt.analysis.input_file import InputFile, reason
from smon_rt.trace.wire import DELIMITED, WireError, fields, read_varint

#: The recorder's packets are far below this; a longer one is a damaged length, and must not be read into memory.
LONGEST_PACKET_BYTES = 64 << 20

_PACKET_TAG = 0x0A  # field 1, length-delimited
_CHECKSUM_TAG = 0x0D  # field 1 of the packet, fixed32
_CHECKSUM_BYTES = 5
_HEAD_BYTES = 24
_SEARCH_BYTES = 1 << 20
# What a packet begins with: its tag, a length of at most five bytes, the tag of its checksum. A lookahead, since
# candidates may overlap.
_CANDIDATE = re.compile(rb"(?=\x0a[\x80-\xff]{0,4}[\x00-\x7f]\x0d)", re.DOTALL)
_LONGEST_CANDIDATE_BYTES = 7
# A search after damage sums the bytes of each candidate. Chance finds few; a file made of candidates must not keep the
# reader busy for hours.
_SEARCH_BUDGET_RATIO = 4
_MOST_DAMAGE_COUNT = 1000


@dataclass(frozen=True, slots=True)
class Damage:
    """What could not be read, and where in its file."""

    path: str
    offset: int
    what: str

    def __str__(self) -> str:
        return f"{self.path}: byte {self.offset}: {self.what}"


class Packet(NamedTuple):
    """A packet whose checksum is right."""

    offset: int
    body: bytes


class _Frame(NamedTuple):
    is_packet: bool
    start: int
    end: int


class PacketReader:
    """Iterates over the packets of an open file, as it was when opened.

    `damage` grows while iterating; `is_cut` is true when the file ends inside a packet.
    """

    def __init__(self, source: InputFile) -> None:
        self.damage: list[Damage] = []
        self.is_cut = False
        self._source = source
        self._size_bytes = source.size_bytes
        self._search_budget_bytes = _SEARCH_BUDGET_RATIO * source.size_bytes + LONGEST_PACKET_BYTES

    def add_damage(self, offset: int, what: str) -> None:
        """Notes damage, but no endless list of it."""
        if len(self.damage) < _MOST_DAMAGE_COUNT:
            self.damage.append(Damage(self._source.name, offset, what))
        elif len(self.damage) == _MOST_DAMAGE_COUNT:
            self.damage.append(Damage(self._source.name, offset, "and more damage after this"))

    def __iter__(self) -> Iterator[Packet]:
        offset = 0
        try:
            while offset < self._size_bytes:
                frame = self._frame(offset)
                if frame is not None and frame.end <= self._size_bytes:
                    if not frame.is_packet:
                        # A field of a later version: passed over if what follows it makes sense.
                        if self._is_boundary(frame.end):
                            offset = frame.end
                            continue
                    else:
                        body = self._read(frame.start, frame.end - frame.start)
                        if len(body) == frame.end - frame.start and checksum_is_right(body):
                            yield Packet(offset, body)
                            offset = frame.end
                            continue
                        if self._is_boundary(frame.end):
                            self.add_damage(offset, f"packet of {len(body)} bytes has a wrong checksum")
                            offset = frame.end
                            continue
                offset = self._after_damage(offset, frame)
        except self._source.read_errors as error:
            self.add_damage(offset, f"cannot be read ({reason(error)})")

    def _read(self, offset: int, count: int) -> bytes:
        self._source.handle.seek(offset)
        return self._source.handle.read(count)

    def _frame(self, offset: int) -> _Frame | None:
        """The field of the file at `offset`, if one may begin there; its end may lie beyond the file's."""
        head = self._read(offset, min(_HEAD_BYTES, self._size_bytes - offset))
        try:
            tag, position = read_varint(head, 0, len(head))
            if tag == _PACKET_TAG:
                length, position = read_varint(head, position, len(head))
                if length > LONGEST_PACKET_BYTES:
                    return None
                return _Frame(True, offset + position, offset + position + length)
            if tag >> 3 in (0, 1):
                return None
            if tag & 7 == DELIMITED:
                length, position = read_varint(head, position, len(head))
                if head[position : position + 1] == bytes([_CHECKSUM_TAG]):
                    return None  # rather a packet whose tag is damaged
                return _Frame(False, offset + position, offset + position + length)
            field = next(fields(head))
            return _Frame(False, offset + field.start, offset + field.end)
        except WireError:
            return None

    def _is_boundary(self, offset: int) -> bool:
        """True at the end of the file, and where a packet seems to begin."""
        if offset == self._size_bytes:
            return True
        head = self._read(offset, min(_LONGEST_CANDIDATE_BYTES, self._size_bytes - offset))
        return _CANDIDATE.match(head) is not None

    def _after_damage(self, offset: int, frame: _Frame | None) -> int:
        """Where to go on after bytes that are no packet: at the next one, or at the end."""
        found = self._search(offset + 1)
        if found is not None:
            self.add_damage(offset, f"{found - offset} bytes are no packet")
            return found
        rest = self._size_bytes - offset
        if self._search_budget_bytes <= 0:
            self.add_damage(offset, f"the last {rest} bytes hold too much damage to be searched")
        elif frame is not None and frame.is_packet:
            self.is_cut = True
            missing = frame.end - self._size_bytes
            self.add_damage(offset, f"cut: the last {missing} bytes of a packet of {rest + missing} are missing")
        elif rest < _HEAD_BYTES:
            self.is_cut = True
            self.add_damage(offset, f"cut: {rest} bytes of a packet are all there is of it")
        else:
            self.add_damage(offset, f"the last {rest} bytes are no packet")
        return self._size_bytes

    def _search(self, offset: int) -> int | None:
        """The next packet with a right checksum."""
        while offset < self._size_bytes:
            window = self._read(offset, min(_SEARCH_BYTES, self._size_bytes - offset))
            if not window:
                return None
            for match in _CANDIDATE.finditer(window):
                begin = offset + match.start()
                frame = self._frame(begin)
                if frame is None or frame.end > self._size_bytes:
                    continue
                self._search_budget_bytes -= frame.end - frame.start
                if self._search_budget_bytes <= 0:
                    return None
                if checksum_is_right(self._read(frame.start, frame.end - frame.start)):
                    return begin
            # A candidate may lie across the end of the window.
            if len(window) <= _LONGEST_CANDIDATE_BYTES or offset + len(window) >= self._size_bytes:
                return None
            offset += len(window) - _LONGEST_CANDIDATE_BYTES
        return None


def checksum_is_right(body: bytes) -> bool:
    """True when a packet's CRC-32 is that of the bytes after it."""
    if body[:1] == bytes([_CHECKSUM_TAG]) and len(body) >= _CHECKSUM_BYTES:
        stored = int.from_bytes(body[1:_CHECKSUM_BYTES], "little")
        return zlib.crc32(memoryview(body)[_CHECKSUM_BYTES:]) == stored
    # Protobuf libraries do not write a field that is 0.
    return zlib.crc32(body) == 0
