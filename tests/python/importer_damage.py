"""Reads damaged versions of a trace one after the other; run as a child process by test_importer_damaged_file.

    python -m tests.python.importer_damage TRACE DAMAGE FIRST COUNT STEP

Prints each case before it is read, so that the last line names the one that crashed, and a summary at the end.
"""

from __future__ import annotations

import random
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path

from smon_rt.analysis.importer import Trace, read_trace
from tests.python.importer_traces import trace_or_refusal

# pyarrow, its thread stacks and heaps map some 3 GiB before it reads anything; a blow-up wants far more than the rest.
ADDRESS_SPACE_BYTES = 8 << 30
SLOWEST_READ_S = 20.0
FOOTER_BYTES = 4096
# Varints and integers as parquet's thrift writes them: zero, huge, negative.
HOSTILE = (
    b"\x00" * 4,
    b"\xff" * 4,
    b"\xff\xff\xff\xff\x0f",
    b"\xfe\xff\xff\xff\x0f",
    b"\x80" * 5 + b"\x01",
    b"\xff" * 9 + b"\x01",
)


def damaged(original: bytes, damage: str, case: int) -> bytes:
    """The version of `original` that `damage` and `case` name."""
    chance = random.Random(f"{damage} {case}")
    content = bytearray(original)
    footer = max(len(content) - FOOTER_BYTES, 0)
    if damage == "cut":
        return original[:case]
    if damage == "cut_before_footer":
        footer = len(content) - 8 - int.from_bytes(original[-8:-4], "little")
        return original[: min(case, footer)] + original[footer:]
    if damage in ("flip", "flip_footer"):
        for _ in range(chance.choice((1, 1, 2, 8))):
            content[chance.randrange(footer if damage == "flip_footer" else 0, len(content))] ^= 1 << chance.randrange(
                8
            )
    elif damage == "overwrite":
        at = chance.randrange(len(content))
        filler = bytes(chance.randrange(256) for _ in range(chance.randrange(1, 40)))
        content[at : at + len(filler)] = filler
    elif damage == "huge":
        at = chance.randrange(footer if case % 2 else 0, len(content) - 8)
        filler = chance.choice(HOSTILE)
        content[at : at + (len(filler) if case % 3 else 1)] = filler
    elif damage == "move":
        source, at, size = chance.randrange(len(content)), chance.randrange(len(content)), chance.randrange(1, 300)
        content[at : at + size] = content[source : source + size]
    elif damage == "remove":
        at = chance.randrange(len(content))
        del content[at : at + chance.randrange(1, 30)]
    elif damage == "random_footer":
        filler = bytes(chance.randrange(256) for _ in range(chance.randrange(200)))
        return b"PAR1" + filler + len(filler).to_bytes(4, "little") + b"PAR1"
    else:
        raise ValueError(damage)
    return bytes(content)


def main(trace: Path, damage: str, first: int, count: int, step: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))
    original = trace.read_bytes()
    read_count = 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / trace.name
        for record in trace.parent.glob("*.yaml"):
            shutil.copy(record, folder)
        for case in range(first, first + count * step, step):
            print(case, flush=True)
            path.write_bytes(damaged(original, damage, case))
            began_s = time.monotonic()
            read_count += isinstance(trace_or_refusal(lambda: read_trace(path)), Trace)
            assert time.monotonic() - began_s < SLOWEST_READ_S, f"case {case} took too long"
    print(f"{read_count} read, {count - read_count} refused")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
