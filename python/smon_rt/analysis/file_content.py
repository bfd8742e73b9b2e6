"""Says what a file that is no op trace seems to be, from its first bytes."""

from __future__ import annotations

import re

from smon_rt.analysis.input_file import InputFile, reason
from smon_rt.errors import TraceError

_MAGIC = b"PAR1"
_SNIFFED_BYTES = 1 << 16
# Magic, footer length, magic: less cannot be a parquet file.
_SMALLEST_PARQUET_BYTES = 12

# A packet of a trace file: its tag, its length, the tag of its checksum.
_TRACE_FILE = re.compile(rb"\x0a[\x80-\xff]{0,4}[\x00-\x7f]\x0d", re.DOTALL)

_FORMATS = (
    (b"PARE", "a parquet file with an encrypted footer", "decrypt it first"),
    (b"ARROW1", "an Arrow (feather) file", "write it as parquet"),
    (b"\x1f\x8b", "a gzip file", "unpack it first"),
    (b"\x28\xb5\x2f\xfd", "a zstd file", "unpack it first"),
    (b"BZh", "a bzip2 file", "unpack it first"),
    (b"\xfd7zXZ\x00", "an xz file", "unpack it first"),
    (b"PK\x03\x04", "a zip file", "unpack it first"),
    (b"ORC", "an ORC file", "write it as parquet"),
    (b"Obj\x01", "an Avro file", "write it as parquet"),
    (b"SQLite format 3\x00", "an SQLite database", "export its ops as parquet"),
    (b"\x89HDF", "an HDF5 file", "write it as parquet"),
    (b"version https://git-lfs", "a Git LFS pointer", "fetch the file itself with git lfs pull"),
)


def refuse_other_formats(source: InputFile) -> None:
    """Raises TraceError unless the file begins and ends as parquet does; leaves it at its beginning."""
    # By its size: some files of /proc say 0, and reading them can wait forever.
    head, tail = _read_ends(source) if source.size_bytes > 0 else (b"", b"")
    if not head:
        raise TraceError(f"{source.name}: is empty; give a recorded trace")
    if not head.startswith(_MAGIC):
        what, todo = describe_content(head)
        raise TraceError(f"{source.name}: is {what}, not a parquet trace; {todo}")
    if tail != _MAGIC or source.size_bytes < _SMALLEST_PARQUET_BYTES:
        raise TraceError(f"{source.name}: is cut short (parquet without its end); copy or record it again")


def describe_content(head: bytes) -> tuple[str, str]:
    """What the beginning of a file looks like, and what to do about it."""
    for magic, what, todo in _FORMATS:
        if head.startswith(magic):
            return what, todo
    text = _as_text(head)
    if text is None:
        if _TRACE_FILE.match(head):
            return "a .smon trace file", "give it a name that ends in .smon, as it was recorded"
        return "binary data of an unknown format", "give the .parquet file of an op trace"
    start = text.lstrip()
    if start.startswith(("{", "[")):
        if '"traceEvents"' in text or '"ph"' in text:
            return "a Chrome or Kineto profiler JSON", "it carries no pipeline ids, so give the .parquet of an op trace"
        return "a JSON file", "give the .parquet file of an op trace"
    if start.startswith("<"):
        return "an HTML or XML page", "download the file itself"
    first_line = start.partition("\n")[0]
    if "dp_size:" in text or "trial_name:" in text:
        return "a job record (YAML)", "give the .parquet file, and this one with --meta"
    if first_line.count(",") >= 2 or first_line.count("\t") >= 2:
        return "a CSV or TSV table", "write it as parquet"
    return "a text file", "give the .parquet file of an op trace"


def _read_ends(source: InputFile) -> tuple[bytes, bytes]:
    try:
        source.handle.seek(0)
        head = source.handle.read(_SNIFFED_BYTES)
        source.handle.seek(max(source.size_bytes - len(_MAGIC), 0))
        tail = source.handle.read(len(_MAGIC) + 1)
        source.handle.seek(0)
    except source.read_errors as error:
        raise TraceError(f"{source.name}: cannot be read ({reason(error)}); check the file") from None
    return head, tail


def _as_text(head: bytes) -> str | None:
    try:
        # The sniffed part may end inside a character.
        text = head.decode("utf-8", "strict") if len(head) < _SNIFFED_BYTES else head[:-3].decode("utf-8", "ignore")
    except UnicodeDecodeError:
        return None
    return None if "\x00" in text else text
