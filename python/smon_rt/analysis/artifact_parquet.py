"""The published artifact's parquet, column by column, as the engine's columns.

One column at a time is read, checked, converted and let go, so that the peak stays near the size of the result.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from smon_rt.analysis.file_content import refuse_other_formats
from smon_rt.analysis.input_file import InputFile, reason, shown
from smon_rt.errors import TraceError

_NS_PER_S = 1_000_000_000
# Below this a float64 count of ns resolves 1 ns, and one multiplication is exact enough.
_EXACT_NS = float(1 << 53)
# start + duration of any op must fit int64 ns: 2^62 ns is the year 2116 in unix time.
_LATEST_START_S = float((1 << 62) // _NS_PER_S)
# 116 days. Milliseconds or ns taken for seconds end up above it.
_LONGEST_DURATION_S = 1e7
# From here on neighbouring float32 seconds lie over 10 ms apart, and order and durations mean nothing any more.
_LAST_FLOAT32_START_S = float(1 << 17)
# A footer that claims more rows than this per byte of file is damaged: it would make the reader reserve all memory.
# A regular job under the best codec comes near 64.
_MOST_ROWS_PER_BYTE_COUNT = 1024
# What pyarrow makes of damaged bytes: its own exceptions, and bare ones where those of C++ come through.
_DAMAGE = (pa.ArrowException, OSError, ValueError, TypeError, LookupError, OverflowError, RuntimeError)


@dataclass(frozen=True)
class IntegerColumn:
    """An integer column: its name in the artifact and in the batch, the batch's type, the least value allowed.

    A nullable column (least -1) reads null and NaN as -1, not applicable.
    """

    source: str
    name: str
    type: pa.DataType
    least: int
    nullable: bool = False


STEP = IntegerColumn("step", "step", pa.int64(), 0)
INTEGERS = (
    IntegerColumn("dp_rank", "dp_rank", pa.int32(), 0),
    IntegerColumn("stage", "stage", pa.int32(), 0),
    IntegerColumn("rank", "rank", pa.int32(), 0),
    STEP,
    IntegerColumn("seq_id", "seq_id", pa.int32(), 0),
    IntegerColumn("mc", "chunk", pa.int32(), -1, nullable=True),
    IntegerColumn("gmc", "global_chunk", pa.int32(), -1, nullable=True),
    IntegerColumn("mb_id", "microbatch", pa.int32(), -1, nullable=True),
)
# Source column, batch column, largest value in seconds.
TIMES = (("start_ts", "start_ns", _LATEST_START_S), ("duration", "duration_ns", _LONGEST_DURATION_S))
KIND_SOURCE = "optype"
_SOURCE_COLUMNS = (
    *("dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration"),
    *("seq_id", "mc", "mb_id", "gmc"),
)
BATCH_COLUMNS = (
    *("dp_rank", "stage", "rank", "step", "kind", "start_ns", "duration_ns"),
    *("seq_id", "chunk", "global_chunk", "microbatch"),
)


def read_ops(source: InputFile, steps: Container[int] | None, kind_names: tuple[str, ...]) -> pa.RecordBatch:
    """Reads all ops (of `steps`, if given) as one RecordBatch of BATCH_COLUMNS without nulls. Raises TraceError."""
    try:
        return _ArtifactReader(source, kind_names).read(steps)
    except TraceError:
        raise
    except MemoryError:
        raise TraceError(f"{source.name}: does not fit in memory; analyse part of it with --steps") from None
    except (*_DAMAGE, *source.read_errors) as error:
        raise TraceError(f"{source.name}: damaged parquet ({reason(error)}); copy or record it again") from None


class _ArtifactReader:
    """Reads the columns of one open file, all through the same selection of rows."""

    def __init__(self, source: InputFile, kind_names: tuple[str, ...]) -> None:
        self._name = source.name
        self._kind_names = kind_names
        refuse_other_formats(source)
        footer = pq.read_metadata(source.handle)
        # read_dictionary: a text column arrives as codes, never as one string per row. pyarrow wants it to exist.
        encoded = [KIND_SOURCE] if KIND_SOURCE in footer.schema.names else []
        self._file = pq.ParquetFile(source.handle, metadata=footer, read_dictionary=encoded, pre_buffer=False)
        self._row_count: int = footer.num_rows
        if self._row_count > source.size_bytes * _MOST_ROWS_PER_BYTE_COUNT:
            raise self._error(f"damaged parquet (claims {self._row_count} rows)", "copy or record it again")
        self._schema: pa.Schema = self._file.schema_arrow
        self._row_groups = list(range(self._file.metadata.num_row_groups))
        self._mask: pa.Array | None = None
        self._file_mask: pa.Array | None = None

    def read(self, steps: Container[int] | None) -> pa.RecordBatch:
        self._check_schema()
        if self._row_count == 0:
            raise self._error("has no rows", "give a trace with recorded ops")
        if steps is not None:
            self._select(steps)
        columns = {column.name: self._integers(column) for column in INTEGERS}
        columns["kind"] = self._kinds()
        for source, name, most_s in TIMES:
            columns[name] = self._times(source, most_s)
        # A bitmap of all valid rows may be left over; the engine is promised there is none.
        arrays = [_without_validity(columns.pop(name)) for name in BATCH_COLUMNS]
        return pa.record_batch(arrays, names=list(BATCH_COLUMNS))

    def _error(self, what: str, todo: str) -> TraceError:
        return TraceError(f"{self._name}: {what}; {todo}")

    def _check_schema(self) -> None:
        names: list[str] = self._schema.names
        needed = _SOURCE_COLUMNS
        missing = [name for name in needed if name not in names]
        if missing:
            present = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "") if names else "none"
            raise self._error(
                f"lacks column{'s' * (len(missing) > 1)} {', '.join(missing)} (it has: {shown(present)})",
                "give a parquet of ops, or rename its columns",
            )
        repeated = [name for name in needed if names.count(name) > 1]
        if repeated:
            raise self._error(f"has column {repeated[0]} twice", "write each column once")
        for column in INTEGERS:
            kind = self._schema.field(column.source).type
            floats = column.nullable and (pa.types.is_float32(kind) or pa.types.is_float64(kind))
            nothing = column.nullable and pa.types.is_null(kind)
            if not (pa.types.is_integer(kind) or floats or nothing):
                raise self._wrong_type(column.source, "integers")
        for source, _, _ in TIMES:
            kind = self._schema.field(source).type
            if not (pa.types.is_float32(kind) or pa.types.is_float64(kind)):
                raise self._wrong_type(source, "float seconds")
        kind = self._schema.field(KIND_SOURCE).type
        if not pa.types.is_dictionary(kind) or not _is_text(kind.value_type):
            raise self._wrong_type(KIND_SOURCE, "text")

    def _wrong_type(self, column: str, expected: str) -> TraceError:
        found = shown(str(self._schema.field(column).type))[:60]
        return self._error(f"column {column} holds {found}, expected {expected}", "convert the column")

    def _select(self, steps: Container[int]) -> None:
        """Keeps the rows of `steps`; row groups without any are not read again."""
        values = self._checked_integers(STEP, self._column(STEP.source))
        recorded: list[int] = pc.unique(values).to_pylist()
        wanted = [step for step in recorded if step in steps]
        if not wanted:
            raise self._error(
                f"has none of the steps asked for (it has {len(recorded)} steps, {min(recorded)} to {max(recorded)})",
                "choose others with --steps",
            )
        mask = pc.is_in(values, value_set=pa.array(wanted, values.type))
        kept: list[pa.Array] = []
        groups: list[int] = []
        first_row = 0
        for group in self._row_groups:
            part = mask.slice(first_row, self._file.metadata.row_group(group).num_rows)
            first_row += len(part)
            if part.true_count > 0:
                groups.append(group)
                kept.append(part)
        self._row_groups, self._file_mask, self._mask = groups, mask, pa.concat_arrays(kept)

    def _column(self, source: str) -> pa.Array:
        """One column of the selected rows as one array."""
        # One column is one thread's work anyway. A thread of Arrow's pool would free what the Python file handed out,
        # for which it takes the interpreter's lock; where the interpreter is just ending, that aborts the process.
        table = self._file.read_row_groups(self._row_groups, columns=[source], use_threads=False)
        expected_count = self._row_count if self._mask is None else len(self._mask)
        if table.num_columns != 1 or table.num_rows != expected_count:
            raise self._error(
                f"damaged parquet ({table.num_rows} of {expected_count} rows of {source})", "copy or record it again"
            )
        column = table.column(0)
        if pa.types.is_dictionary(column.type):
            column = column.unify_dictionaries()
        array = column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
        return array if self._mask is None else array.filter(self._mask)

    def _row(self, index: int) -> str:
        """`row N` of the file for an index into a selected column."""
        if self._file_mask is not None:
            index = pc.indices_nonzero(self._file_mask)[index].as_py()
        return f"row {index}"

    def _first(self, flags: pa.Array) -> int:
        return int(pc.index(flags, True).as_py())

    def _refuse_nulls(self, source: str, values: pa.Array) -> None:
        if values.null_count:
            row = self._row(self._first(values.is_null()))
            raise self._error(f"column {source} has no value in {row}", "fill it or drop the row")

    def _integers(self, column: IntegerColumn) -> pa.Array:
        values = self._column(column.source)
        if column.nullable:
            values = self._filled(column, values)
        return self._checked_integers(column, values).cast(column.type)

    def _filled(self, column: IntegerColumn, values: pa.Array) -> pa.Array:
        """-1 for null, and for NaN where pandas turned a nullable integer column into floats."""
        if pa.types.is_null(values.type):
            return pa.repeat(pa.scalar(-1, column.type), len(values))
        if pa.types.is_floating(values.type):
            values = pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), values)
            fraction = pc.fill_null(pc.not_equal(values, pc.floor(values)), False)
            if fraction.true_count:
                index = self._first(fraction)
                raise self._bad_value(column.source, values[index].as_py(), index, "a whole number")
        if values.null_count == 0:
            return values
        if pa.types.is_unsigned_integer(values.type):
            # Unsigned: widen first, as -1 does not fit; what does not fit int64 either is out of range anyway.
            self._check_range(column, values)
            values = values.cast(pa.int64())
        return pc.fill_null(values, pa.scalar(-1, values.type))

    def _checked_integers(self, column: IntegerColumn, values: pa.Array) -> pa.Array:
        self._refuse_nulls(column.source, values)
        self._check_range(column, values)
        return values

    def _check_range(self, column: IntegerColumn, values: pa.Array) -> None:
        most = (1 << 31) - 1 if column.type == pa.int32() else (1 << 63) - 1
        bounds = pc.min_max(values)
        for bound in (bounds["min"], bounds["max"]):
            if bound.is_valid and not column.least <= bound.as_py() <= most:
                index = int(pc.index(values, bound).as_py())
                raise self._bad_value(column.source, bound.as_py(), index, f"{column.least} to {most}")

    def _bad_value(self, source: str, value: object, index: int, expected: str) -> TraceError:
        return self._error(
            f"column {source} is {value} in {self._row(index)}, expected {expected}", "correct or drop the row"
        )

    def _times(self, source: str, most_s: float) -> pa.Array:
        """Seconds as int64 ns, rounded to nearest."""
        values = self._column(source)
        self._refuse_nulls(source, values)
        finite = pc.is_finite(values)
        if finite.false_count:
            index = self._first(pc.invert(finite))
            raise self._bad_value(source, values[index].as_py(), index, "finite seconds")
        del finite
        is_float32 = pa.types.is_float32(values.type)
        values = values.cast(pa.float64())
        bounds = pc.min_max(values)
        least, most = bounds["min"], bounds["max"]
        if least.as_py() < 0:
            raise self._bad_value(source, least.as_py(), pc.index(values, least).as_py(), "0 or later, in seconds")
        if most.as_py() > most_s:
            raise self._bad_value(source, most.as_py(), pc.index(values, most).as_py(), f"seconds up to {most_s:.4g}")
        if is_float32 and most.as_py() >= _LAST_FLOAT32_START_S:
            raise self._error(
                f"column {source} reaches {most.as_py():.10g} s, where float32 is coarser than 10 ms",
                "write it as float64, or relative to each step",
            )
        return _to_ns(values, most.as_py())

    def _kinds(self) -> pa.Array:
        """Kind codes: each distinct text is looked up once, the rows only take its code."""
        values = self._column(KIND_SOURCE)
        self._refuse_nulls(KIND_SOURCE, values)
        codes = {name.replace("_", "-").encode(): code for code, name in enumerate(self._kind_names)}
        unknown = len(codes)
        # As bytes: the text of a damaged file need not be UTF-8. A category that no row uses may be anything.
        texts: list[bytes | None] = values.dictionary.cast(pa.large_binary()).to_pylist()
        lookup = pa.array([codes.get(text, unknown) if text is not None else unknown for text in texts], pa.uint8())
        kinds = lookup.take(values.indices)
        index = int(pc.index(kinds, pa.scalar(unknown, pa.uint8())).as_py())
        if index < 0:
            return kinds
        text = texts[values.indices[index].as_py()]
        found = "empty" if text is None else repr(text[:60].decode("utf-8", "backslashreplace"))
        known = ", ".join(name.decode() for name in codes)
        raise self._error(f"column optype is {found} in {self._row(index)}", f"known op types: {known}")


def _to_ns(seconds: pa.Array, most_s: float) -> pa.Array:
    if most_s * _NS_PER_S < _EXACT_NS:
        return pc.round(pc.multiply(seconds, float(_NS_PER_S))).cast(pa.int64())
    # Unix seconds: whole and fractional part are exact in float64, their product with 1e9 together is not (128 ns off).
    whole = pc.floor(seconds)
    fraction_ns = pc.round(pc.multiply(pc.subtract(seconds, whole), float(_NS_PER_S))).cast(pa.int64())
    return pc.add(pc.multiply(whole.cast(pa.int64()), _NS_PER_S), fraction_ns)


def _is_text(kind: pa.DataType) -> bool:
    return kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())


def _without_validity(array: pa.Array) -> pa.Array:
    return pa.Array.from_buffers(array.type, len(array), [None, array.buffers()[1]], 0, array.offset)
