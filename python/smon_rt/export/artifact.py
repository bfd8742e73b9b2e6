"""Writes the published artifact's form of a trace, which `smon analyze` reads: a parquet of ops, a YAML of sizes.

The analysis needs the same ops in every step, so what does not fit is left out, and said: other kinds of spans, warm-up
steps, steps that some rank did not record or not as the others, gc where it is not in every step, and what runs in an
order that the artifact's rules do not know (artifact_order.py).
"""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import pyarrow as pa
import yaml

from smon_rt.analysis.smon_device import times_in_order
from smon_rt.artifact_format import KINDS, SCHEMA, job_record, optype_column, write_tables
from smon_rt.errors import TraceError
from smon_rt.export.artifact_check import check_step
from smon_rt.export.artifact_order import WorkerOps, fit_order
from smon_rt.trace.job_trace import JobTrace
from smon_rt.trace.kinds import FLAGS, KIND_NUMBERS
from smon_rt.trace.rank_trace import RankTrace
from smon_rt.trace.spans import Array, SpanColumns

if TYPE_CHECKING:
    from smon_rt.export.ideal import OpTable

_COMPUTES = (KIND_NUMBERS["forward_compute"], KIND_NUMBERS["backward_compute"])
_OF_A_CHUNK = (*_COMPUTES, KIND_NUMBERS["params_all_gather"], KIND_NUMBERS["grads_reduce_scatter"])
_GC = KIND_NUMBERS["gc"]
# The place of each kind's number in KINDS.
_CODES = np.full(256, -1, np.int8)
_CODES[[KIND_NUMBERS[name] for name in KINDS]] = range(len(KINDS))
# Spans that are no op of the step's graph: of an evaluation, recomputed inside a backward, or left by an exception.
_NO_OP_FLAGS = FLAGS["forward_only"] | FLAGS["recomputed"] | FLAGS["aborted"]
_MOST_NAMED_STEPS = 8
_IDEAL_FIELDS = (pa.field("ideal_start_ts", pa.float64()), pa.field("ideal_duration", pa.float64()))
#: With an ideal timeline; `smon analyze` reads the first columns alone.
IDEAL_SCHEMA = pa.schema([*SCHEMA, *_IDEAL_FIELDS])


@dataclass
class ArtifactExport:
    """Ops of a job, collected rank by rank; `left_out` says what is not in the file."""

    workers: dict[tuple[int, int], WorkerOps] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    _member_ranks: int = 0
    _has_device_times: bool = False
    _no_op_spans: Counter[str] = field(default_factory=Counter)
    _warmup_steps: set[int] = field(default_factory=set)
    _steps: Array | None = None

    def add(self, trace: RankTrace, offset_ns: int) -> None:
        """Takes the ops of a rank; ranks come in order, and the first of a worker stands for it."""
        layout = trace.identity.layout
        if not self.sizes:
            names = ("dp_size", "pp_size", "tp_size", "cp_size", "vpp_size")
            self.sizes = {name: max(getattr(layout, name), 1) for name in names}
            self.sizes["world_size"] = trace.identity.world_size
            _check_sizes(trace, self.sizes)
        place = (layout.dp_rank, layout.stage)
        if place in self.workers:
            self._member_ranks += 1
            return
        spans = trace.spans
        is_kind = np.isin(spans.kind, [KIND_NUMBERS[kind] for kind in KINDS])
        is_op = spans.flags & _NO_OP_FLAGS == 0
        is_warmup = spans.flags & FLAGS["warmup"] != 0
        self._warmup_steps.update(np.unique(spans.step[is_kind & is_warmup]).tolist())
        self._no_op_spans["of other kinds"] += int(np.count_nonzero(~is_kind))
        self._no_op_spans["of evaluation, recomputed or aborted"] += int(np.count_nonzero(is_kind & ~is_op))
        ops = spans.take(is_kind & is_op & ~is_warmup)
        self._has_device_times = self._has_device_times or bool(ops.has_device_times.any())
        start_ns, end_ns, _ = times_in_order(ops, np.ones(len(ops), np.uint8))
        self.workers[place] = WorkerOps(trace.rank, *place, ops, start_ns + offset_ns, end_ns - start_ns)

    def finish(self, job: JobTrace) -> None:
        """Chooses the steps that all workers recorded alike, and what of them the artifact's rules can hold.

        Raises TraceError when there is none, or `smon analyze` would refuse the file for another reason than that a
        worker has no rank in it.
        """
        if not any(len(worker.ops) for worker in self.workers.values()):
            warmup = " outside of warm-up steps" if self._warmup_steps else ""
            raise TraceError(
                f"run {job.run_id}: no rank recorded an op of a training step{warmup}; export to csv instead"
            )
        without = [worker.rank for worker in self.workers.values() if not len(worker.ops)]
        if without:
            more = f" (nor did {len(without) - 1} others)" if len(without) > 1 else ""
            raise TraceError(
                f"run {job.run_id}: rank {without[0]} recorded no op of a training step{more}, and the analysis needs "
                "every worker; export to csv or perfetto instead"
            )
        self._drop_irregular_gc()
        has_one_chunk = self.sizes["vpp_size"] == 1
        self.left_out += fit_order(list(self.workers.values()), has_one_chunk=has_one_chunk)
        self._steps = self._complete_steps(job)
        self._say(job)
        if not self.absent_words():
            step = io.BytesIO()
            self._write(step, self._steps[:1], None)
            check_step(job.run_id, step.getvalue(), self.sizes)

    def write(self, output: BinaryIO, ideal: Mapping[tuple[int, int], OpTable] | None = None) -> int:
        """Writes the parquet; returns its rows. `ideal`, the ops of workers without stragglers, adds two columns."""
        assert self._steps is not None
        return self._write(output, self._steps, ideal)

    def _write(self, output: BinaryIO, steps: Array, ideal: Mapping[tuple[int, int], OpTable] | None) -> int:
        masks = {place: np.isin(worker.ops.step, steps) for place, worker in self.workers.items()}
        # Times count from the first op: a float64 of seconds since boot, or since 1970, would lose nanoseconds.
        origin_ns = min(
            int(worker.start_ns[masks[place]].min()) for place, worker in self.workers.items() if masks[place].any()
        )
        rows_of = ((worker, np.flatnonzero(masks[place])) for place, worker in self.workers.items())
        if ideal is None:
            return write_tables(output, (self._table(worker, rows, origin_ns) for worker, rows in rows_of))
        tables = (
            _with_ideal(self._table(worker, rows, origin_ns), ideal.get((worker.dp_rank, worker.stage)), origin_ns)
            for worker, rows in rows_of
        )
        return write_tables(output, tables, schema=IDEAL_SCHEMA)

    def meta(self, job: JobTrace) -> str:
        """The job's record, as YAML."""
        record = job_record(job.run_id, job.attempt, **self.sizes)
        # What a job on a CPU took must not pass for a GPU's times.
        return yaml.safe_dump(record | {"has_device_times": self._has_device_times}, sort_keys=False)

    def absent_words(self) -> str:
        """What `smon analyze` will say of the file, where a worker has no rank in it; nothing where all have."""
        places = ((dp, stage) for stage in range(self.sizes["pp_size"]) for dp in range(self.sizes["dp_size"]))
        absent = [place for place in places if place not in self.workers]
        if not absent:
            return ""
        more = f" and {len(absent) - 1:,} more" if len(absent) > 1 else ""
        return (
            f"`smon analyze` refuses it, for it needs every worker and (dp {absent[0][0]}, stage {absent[0][1]}){more}"
            " was not recorded: analyse the recorded files themselves"
        )

    def _table(self, worker: WorkerOps, rows: Array, origin_ns: int) -> pa.Table:
        ops = worker.ops
        rows = rows[np.lexsort((ops.op_index[rows], _CODES[ops.kind[rows]], ops.step[rows]))]
        kind = ops.kind[rows]
        is_compute = np.isin(kind, _COMPUTES)
        chunk = ops.chunk[rows]
        if self.sizes["vpp_size"] == 1:
            # One chunk a stage, which a recorder has no reason to number.
            chunk = np.where(np.isin(kind, _OF_A_CHUNK), 0, chunk)
        global_chunk = np.where(is_compute & (chunk >= 0), chunk * self.sizes["pp_size"] + worker.stage, -1)
        if int(chunk.max(initial=-1)) >= self.sizes["vpp_size"] or int(global_chunk.max(initial=-1)) >= 1 << 31:
            raise TraceError(
                f"rank {worker.rank}: recorded chunk {int(chunk.max())}, but has {self.sizes['vpp_size']} (vpp); "
                "give the layout when recording, or export to csv or perfetto"
            )
        columns = {
            "dp_rank": np.full(len(rows), worker.dp_rank),
            "stage": np.full(len(rows), worker.stage),
            "rank": np.full(len(rows), worker.rank),
            "step": ops.step[rows],
            "optype": optype_column(_CODES[kind]),
            "start_ts": (worker.start_ns[rows] - origin_ns) / 1e9,
            "duration": worker.duration_ns[rows] / 1e9,
            "seq_id": ops.op_index[rows],
            "mc": chunk,
            "mb_id": np.where(is_compute, ops.microbatch[rows], -1),
            "gmc": global_chunk,
        }
        return pa.table({name: pa.array(columns[name], SCHEMA.field(name).type) for name in SCHEMA.names}, SCHEMA)

    def _drop_irregular_gc(self) -> None:
        """A collection now and then is no op of every step."""
        counts = Counter(
            (worker.stage, count) for worker in self.workers.values() for count in _counts_by_step(worker.ops).values()
        )
        stages = [stage for stage, _ in counts]
        if len(stages) == len(set(stages)):
            return
        dropped = 0
        for worker in self.workers.values():
            dropped += worker.keep(worker.ops.kind != _GC)
        if dropped:
            self.left_out.append(f"{dropped:,} gc spans, which are not in every step alike (the file cannot show gc)")

    def _complete_steps(self, job: JobTrace) -> Array:
        """Steps in which each worker has the ops that its stage has in most steps."""
        shapes = {place: _shapes(worker.ops) for place, worker in self.workers.items()}
        usual: dict[int, bytes] = {}
        for stage in {stage for _, stage in shapes}:
            seen = Counter(
                shape for place, by_step in shapes.items() if place[1] == stage for shape in by_step.values()
            )
            if seen:
                usual[stage] = max(seen, key=lambda shape: (seen[shape], shape))
        every = sorted(set().union(*shapes.values()))
        alike = [
            step for step in every if all(by_step.get(step) == usual.get(place[1]) for place, by_step in shapes.items())
        ]
        others = [step for step in every if step not in set(alike)]
        if others:
            named = ", ".join(map(str, others[:_MOST_NAMED_STEPS])) + (", …" if len(others) > _MOST_NAMED_STEPS else "")
            self.left_out.append(f"{len(others):,} steps that not all ranks recorded alike ({named})")
        if not alike:
            raise TraceError(
                f"run {job.run_id}: no step was recorded alike by all ranks; export to csv or perfetto instead"
            )
        return np.array(alike, np.int64)

    def _say(self, job: JobTrace) -> None:
        if self._warmup_steps:
            self.left_out.append(f"{len(self._warmup_steps)} warm-up steps")
        self.left_out += [f"{count:,} spans {words}" for words, count in self._no_op_spans.items() if count]
        if self._member_ranks:
            self.left_out.append(f"{self._member_ranks:,} ranks whose worker has a lower rank (tp or cp members)")


def _with_ideal(table: pa.Table, ideal: OpTable | None, origin_ns: int) -> pa.Table:
    """Adds when each op would run without stragglers, in the seconds of `start_ts`; null where the replay lacks it.

    The n-th op of a step, kind and microbatch is the n-th one there.
    """
    start_ns, end_ns = np.zeros(table.num_rows, np.int64), np.zeros(table.num_rows, np.int64)
    lacks = np.ones(table.num_rows, np.bool_)
    if ideal is not None:
        names = table["optype"].to_pylist()
        starts = table["start_ts"].to_numpy()
        kinds = [KIND_NUMBERS[name.replace("-", "_")] for name in names]
        microbatch = np.where(np.isin(kinds, _COMPUTES), table["mb_id"].to_numpy(), -1)
        rows_of = _numbered(table["step"].to_numpy(), np.array(kinds, np.int64), microbatch, starts)
        own = np.where(np.isin(ideal.kind, _COMPUTES), ideal.microbatch, -1)
        for key, there in _numbered(ideal.step, ideal.kind, own, ideal.start_ns).items():
            row = rows_of.get(key)
            if row is not None:
                start_ns[row], end_ns[row], lacks[row] = ideal.start_ns[there], ideal.end_ns[there], False
    columns = ((start_ns - origin_ns) / 1e9, (end_ns - start_ns) / 1e9)
    for field_, values in zip(_IDEAL_FIELDS, columns, strict=True):
        table = table.append_column(field_, pa.array(values, mask=lacks))
    return table


def _numbered(step: Array, kind: Array, microbatch: Array, start: Array) -> dict[tuple[int, int, int, int], int]:
    """The row of each op by step, kind, microbatch and its number among those that are alike, in order of start."""
    seen: Counter[tuple[int, int, int]] = Counter()
    rows: dict[tuple[int, int, int, int], int] = {}
    for row in np.argsort(start, kind="stable").tolist():
        key = (int(step[row]), int(kind[row]), int(microbatch[row]))
        numbered = (*key, seen[key])
        rows[numbered] = row
        seen[key] += 1
    return rows


def _check_sizes(trace: RankTrace, sizes: dict[str, int]) -> None:
    product = math.prod(sizes[name] for name in ("dp_size", "pp_size", "tp_size", "cp_size"))
    if product != sizes["world_size"]:
        words = " * ".join(
            f"{name.removesuffix('_size')} {sizes[name]}" for name in ("dp_size", "pp_size", "tp_size", "cp_size")
        )
        raise TraceError(
            f"rank {trace.rank}: its layout {words} is not its world size {sizes['world_size']}; "
            "give the layout when recording, or export to csv or perfetto"
        )


def _counts_by_step(ops: SpanColumns) -> dict[int, int]:
    """How many gc spans each recorded step has."""
    steps, inverse = np.unique(ops.step, return_inverse=True)
    counts = np.bincount(inverse, weights=ops.kind == _GC, minlength=len(steps)).astype(np.int64)
    return dict(zip(steps.tolist(), counts.tolist(), strict=True))


def _shapes(ops: SpanColumns) -> dict[int, bytes]:
    """For each step, which ops there are: their kinds and numbers, whatever the order of their ends."""
    keys = np.stack([ops.step, ops.kind.astype(np.int64), ops.op_index, ops.microbatch, ops.chunk], axis=1)
    keys = keys[np.lexsort(keys.T[::-1])]
    borders = np.flatnonzero(np.diff(keys[:, 0])) + 1
    return {int(part[0, 0]): part[:, 1:].tobytes() for part in np.split(keys, borders) if len(part)}
