"""Whether `smon analyze` takes what is about to be written."""

from __future__ import annotations

import io
from collections.abc import Mapping

import pyarrow.compute as pc

from smon_rt.analysis.artifact_parquet import read_ops
from smon_rt.analysis.engine import ideal_columns
from smon_rt.analysis.importer import Job, Trace
from smon_rt.analysis.input_file import InputFile
from smon_rt.errors import TraceError
from smon_rt.kinds import KIND_NAMES


def check_step(run_id: str, parquet: bytes, sizes: Mapping[str, int]) -> None:
    """Has the engine replay one step, `parquet`; all steps have the same ops.

    Raises TraceError, in one line, where the artifact's rules cannot hold them.
    """
    name = f"run {run_id}"
    try:
        ops = read_ops(InputFile(name, io.BytesIO(parquet), len(parquet)), None, KIND_NAMES)
        chunk_count = max(pc.max(ops["chunk"]).as_py() + 1, 1)
        if chunk_count != sizes["vpp_size"]:
            raise TraceError(f"{name}: recorded {chunk_count} model chunks a stage, but has {sizes['vpp_size']} (vpp)")
        job = Job(
            run_id,
            dp_size=sizes["dp_size"],
            pp_size=sizes["pp_size"],
            tp_size=sizes["tp_size"],
            cp_size=sizes["cp_size"],
            vpp_size=sizes["vpp_size"],
            world_size=sizes["world_size"],
        )
        ideal_columns(Trace(job, ops, name, read_ms=0.0))
    except TraceError as error:
        raise TraceError(
            f"{error}; as a parquet `smon analyze` would refuse it: analyse the recorded files themselves, or export "
            "to csv or perfetto"
        ) from error
