"""The form of a trace that was published with "Understanding Stragglers in Large Model Training Using What-if
Analysis" (OSDI 2025): what `smon synth` and `smon export` write. Its reader is analysis/artifact_parquet.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import BinaryIO

import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

#: Kinds that the artifact knows, in whose order the rows of a rank are written.
KINDS = (
    "forward_compute",
    "backward_compute",
    "forward_send",
    "forward_recv",
    "backward_send",
    "backward_recv",
    "params_all_gather",
    "grads_reduce_scatter",
    "layernorm_grads_all_reduce",
    "embedding_grads_all_reduce",
    "separate_grads_all_reduce",
    "optimizer_clip_main_grad",
    "optimizer",
    "gc",
)

#: Its columns: times in seconds, chunks as `mc` (of the stage) and `gmc` (of the model), -1 where they do not apply.
SCHEMA = pa.schema(
    [
        ("dp_rank", pa.int32()),
        ("stage", pa.int32()),
        ("rank", pa.int32()),
        ("step", pa.int64()),
        ("optype", pa.dictionary(pa.int8(), pa.string())),
        ("start_ts", pa.float64()),
        ("duration", pa.float64()),
        ("seq_id", pa.int32()),
        ("mc", pa.int32()),
        ("mb_id", pa.int32()),
        ("gmc", pa.int32()),
    ]
)
_DICTIONARY_COLUMNS = [name for name in SCHEMA.names if name not in ("start_ts", "duration")]


def optype_column(codes: npt.ArrayLike) -> pa.DictionaryArray:
    """The `optype` column, of places in `KINDS`."""
    names = pa.array([kind.replace("_", "-") for kind in KINDS])
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int8()), names)


def write_tables(
    output: BinaryIO, tables: Iterable[pa.Table], rows_per_group: int = 500_000, schema: pa.Schema = SCHEMA
) -> int:
    """Writes tables of `schema` one after the other, several to a row group while they are short; returns the rows."""
    row_count = 0
    with pq.ParquetWriter(output, schema, compression="zstd", use_dictionary=_DICTIONARY_COLUMNS) as writer:
        pending: list[pa.Table] = []
        pending_rows = 0
        for table in tables:
            pending.append(table)
            pending_rows += table.num_rows
            row_count += table.num_rows
            if pending_rows >= rows_per_group:
                writer.write_table(pa.concat_tables(pending), row_group_size=4 * rows_per_group)
                pending, pending_rows = [], 0
        if pending:
            writer.write_table(pa.concat_tables(pending), row_group_size=4 * rows_per_group)
    return row_count


def job_record(name: str, run: int, **sizes: int) -> dict[str, str | int]:
    """The record beside a trace. Its dsp_size is the context parallel size.

    Args:
        name: of the job.
        run: number of the run, or of the attempt.
        sizes: dp_size, pp_size, tp_size, cp_size, vpp_size, world_size.
    """
    return {
        "trial_name": name,
        "run_id": run,
        "dp_size": sizes["dp_size"],
        "dsp_size": sizes["cp_size"],
        "pp_size": sizes["pp_size"],
        "tp_size": sizes["tp_size"],
        "vpp_size": sizes["vpp_size"],
        "world_size": sizes["world_size"],
    }
