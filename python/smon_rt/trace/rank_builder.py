"""Collects what the packets of one process say, over all of its files."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

import numpy as np

from smon_rt._proto import trace_pb2
from smon_rt.trace.batches import RawBatch, decode_batches, parse_batch
from smon_rt.trace.comm_ops import CommChannel, CommOpColumns, decode_comm_channels, decode_comm_ops
from smon_rt.trace.packets import Damage
from smon_rt.trace.rank_trace import ClockColumns, RankTrace, StepColumns
from smon_rt.trace.spans import Array, SpanColumns
from smon_rt.trace.wire import WireError

# Fields of TracePacket.
IDENTITY, SPANS, STEP_TIMES, NAMES, LOSSES, SNAPSHOT, CLOCK_MAP, COST, END, LEFTOVER = range(8, 18)
COMM_OPS, COMM_COUNTS, COMM_CHANNELS = range(18, 21)
CONTENTS = range(IDENTITY, COMM_CHANNELS + 1)

# Batches are decoded together until they hold so many spans: large enough for numpy, small beside the result.
_DECODED_SPANS = 1 << 18
_DECODED_BATCHES = 4096
# 73 years of nanoseconds: more is no time of a monotonic clock.
_LARGEST_NS = 1 << 61
_STEP_MODULUS = 1 << 32
_TIME_MODULUS = 1 << 64
_MOST_STEPS_IN_PACKET = 1 << 20
# csrc/record/trace_sink.cc: the last word of a full file.
_ROTATED = "rotated"


class RankBuilder:
    """The trace of one process in the making. `steps` None takes the spans of all steps."""

    def __init__(self, identity: trace_pb2.Identity, steps: range | None) -> None:
        self._steps = steps
        self._file_indices: set[int] = set()
        self._pending: list[tuple[RawBatch, str, int]] = []
        self._pending_spans = 0
        self._spans: list[SpanColumns] = []
        self._rings: dict[int, list[tuple[int, int]]] = {}
        self._step_rows: list[tuple[int, int, int, bool, bool]] = []
        self._clock_rows: list[tuple[int, int, int, int]] = []
        self._costs: set[bytes] = set()
        self._comm_ops: list[CommOpColumns] = []
        self._comm_channels: dict[tuple[int, int, bool], CommChannel] = {}
        empty = np.empty(0, np.int64)
        self._trace = RankTrace(
            files=[],
            identity=identity,
            spans=SpanColumns.concatenate([]),
            steps=StepColumns(empty, empty, empty, empty.astype(np.bool_), empty.astype(np.bool_)),
            clocks=ClockColumns(empty, empty, empty, empty),
        )

    def begin_file(self, path: str, identity: trace_pb2.Identity) -> None:
        """A file, or a part of a joined one, begins."""
        self._file_indices.add(identity.file_index)
        # A process learns its coordinates late and writes its identity again: the last word holds.
        if identity.file_index >= self._trace.identity.file_index:
            self._trace.identity = identity
        self._trace.end_reason = None
        self._trace.leftover = None
        self._trace.lacks_next_file = False
        if not self._trace.files or self._trace.files[-1] != path:
            self._trace.files.append(path)

    def end_file(self, size_bytes: int, damage: Iterable[Damage], is_cut: bool) -> None:
        """What the file as a whole says."""
        self._decode()
        self._trace.damage.extend(damage)
        self._trace.is_cut = is_cut
        self._trace.file_bytes += size_bytes

    def add(self, number: int, data: bytes, steps: tuple[int, int] | None, path: str, offset: int) -> None:
        """One packet's content. Raises WireError or DecodeError where it makes no sense."""
        if number == SPANS:
            self._add_spans(data, steps, path, offset)
        elif number == STEP_TIMES:
            self._add_steps(trace_pb2.StepTimes.FromString(data))
        elif number == NAMES:
            self._add_names(trace_pb2.Names.FromString(data))
        elif number == LOSSES:
            self._trace.losses = trace_pb2.Losses.FromString(data)
        elif number == SNAPSHOT:
            clock = trace_pb2.ClockSnapshot.FromString(data)
            if max(map(abs, (clock.monotonic_ns, clock.realtime_ns))) > _LARGEST_NS or clock.width_ns > _LARGEST_NS:
                raise WireError("a clock shows an impossible time")
            self._clock_rows.append((clock.ticks, clock.monotonic_ns, clock.realtime_ns, clock.width_ns))
        elif number == CLOCK_MAP:
            self._trace.clock_maps.append(_possible_map(trace_pb2.ClockMap.FromString(data)))
        elif number == COST:
            # The packet of a file that was appended to itself; two others with the same times are none of ours.
            if data not in self._costs:
                self._add_cost(trace_pb2.RecorderCost.FromString(data))
                self._costs.add(data)
        elif number == END:
            reason = trace_pb2.End.FromString(data).reason or "closed"
            # No end of the recording: a next file was begun, or should have been.
            self._trace.lacks_next_file = reason == _ROTATED
            self._trace.end_reason = None if reason == _ROTATED else reason
        elif number == LEFTOVER:
            leftover = trace_pb2.Leftover.FromString(data)
            if abs(leftover.realtime_ns) > _LARGEST_NS or not -1 <= leftover.step <= _LARGEST_NS:
                raise WireError("what a killed process left is of an impossible time or step")
            self._trace.leftover = leftover
        elif number == COMM_OPS:
            self._add_comm_ops(trace_pb2.CommOps.FromString(data), steps)
        elif number == COMM_COUNTS:
            self._trace.comm_counts = trace_pb2.CommCounts.FromString(data)
        elif number == COMM_CHANNELS:
            for channel in decode_comm_channels(trace_pb2.CommChannels.FromString(data)):
                self._comm_channels[channel.communicator, channel.channel, channel.is_send] = channel

    def finish(self) -> RankTrace:
        """The trace, complete."""
        self._decode()
        trace = self._trace
        trace.spans = SpanColumns.concatenate(self._spans)
        self._spans = []
        self._account_for_rings()
        comm_ops = CommOpColumns.concatenate(self._comm_ops)
        trace.comm_ops = comm_ops.take(np.unique(comm_ops.number, return_index=True)[1])
        trace.comm_channels = [self._comm_channels[key] for key in sorted(self._comm_channels)]
        rows = list(zip(*self._step_rows, strict=True)) or [()] * 5
        step, start_ns, duration_ns = (np.array(column, np.int64) for column in rows[:3])
        is_sampled, is_warmup = (np.array(column, np.bool_) for column in rows[3:])
        is_new = first_of_each(step, start_ns)
        trace.repeated_step_count = int(np.count_nonzero(~is_new))
        trace.steps = StepColumns(
            step[is_new], start_ns[is_new], duration_ns[is_new], is_sampled[is_new], is_warmup[is_new]
        )
        clocks = list(zip(*self._clock_rows, strict=True)) or [()] * 4
        trace.clocks = ClockColumns(*(np.array(column, np.int64) for column in clocks))
        return trace

    def _add_spans(self, data: bytes, steps: tuple[int, int] | None, path: str, offset: int) -> None:
        batch = parse_batch(data, steps[0] if steps else 0)
        if batch.span_count == 0:
            return
        self._rings.setdefault(batch.ring_id, []).append((batch.first_index, batch.span_count))
        if self._steps is not None and steps and not _overlap(self._steps, steps):
            self._trace.skipped_span_count += batch.span_count
            return
        self._pending.append((batch, path, offset))
        self._pending_spans += batch.span_count
        if self._pending_spans >= _DECODED_SPANS or len(self._pending) >= _DECODED_BATCHES:
            self._decode()

    def _decode(self) -> None:
        """Decodes what is pending; where that fails, batch by batch, to lose only the one that is wrong."""
        pending, self._pending, self._pending_spans = self._pending, [], 0
        if not pending:
            return
        try:
            self._take(decode_batches([batch for batch, _, _ in pending]), *pending[0][1:])
        except WireError:
            for batch, path, offset in pending:
                self._decode_one(batch, path, offset)

    def _decode_one(self, batch: RawBatch, path: str, offset: int) -> None:
        try:
            self._take(decode_batches([batch]), path, offset)
        except WireError as error:
            self._rings[batch.ring_id].remove((batch.first_index, batch.span_count))
            self._trace.damage.append(Damage(path, offset, f"spans that make no sense: {error}"))

    def _take(self, spans: SpanColumns, path: str, offset: int) -> None:
        wrong = _has_wrong_times(spans.start_ns, spans.duration_ns)
        if wrong.any():
            what = f"{np.count_nonzero(wrong)} spans with impossible times, left out"
            self._trace.damage.append(Damage(path, offset, what))
            spans = spans.take(~wrong)
        wrong = _has_wrong_times(spans.device_start_ns, spans.device_duration_ns)
        if wrong.any():
            what = f"{np.count_nonzero(wrong)} spans with impossible device times, taken as without"
            self._trace.damage.append(Damage(path, offset, what))
            spans = dataclasses.replace(
                spans,
                has_device_times=spans.has_device_times & ~wrong,
                time_source=np.where(wrong, np.uint8(0), spans.time_source),
                device_start_ns=np.where(wrong, 0, spans.device_start_ns),
                device_duration_ns=np.where(wrong, 0, spans.device_duration_ns),
            )
        if self._steps is not None:
            wanted = (spans.step >= self._steps.start) & (spans.step < self._steps.stop)
            self._trace.skipped_span_count += int(np.count_nonzero(~wanted))
            spans = spans.take(wanted)
        self._spans.append(spans)

    def _add_comm_ops(self, batch: trace_pb2.CommOps, steps: tuple[int, int] | None) -> None:
        if self._steps is not None and steps and not _overlap(self._steps, steps):
            return
        ops = decode_comm_ops(batch, steps[0] if steps else 0)
        if self._steps is not None:
            ops = ops.take((ops.step >= self._steps.start) & (ops.step < self._steps.stop))
        self._comm_ops.append(ops)

    def _add_steps(self, message: trace_pb2.StepTimes) -> None:
        count = len(message.step)
        if count > _MOST_STEPS_IN_PACKET:
            raise WireError(f"{count} steps in a packet")
        if not len(message.start_ns) == len(message.duration_ns) == count:
            raise WireError(f"{count} steps have {len(message.start_ns)} starts, {len(message.duration_ns)} durations")
        sampled = _flags("sampled", list(message.sampled), count)
        warmup = _flags("warmup", list(message.warmup), count)
        step = start_ns = 0
        rows = []
        for index in range(count):
            step = (step + message.step[index]) % _STEP_MODULUS
            start_ns = (start_ns + message.start_ns[index] + (1 << 63)) % _TIME_MODULUS - (1 << 63)
            duration_ns = message.duration_ns[index]
            if abs(start_ns) > _LARGEST_NS or duration_ns > _LARGEST_NS:
                raise WireError(f"step {step} has impossible times")
            rows.append((step, start_ns, duration_ns, sampled[index], warmup[index]))
        self._step_rows.extend(rows)

    def _add_names(self, message: trace_pb2.Names) -> None:
        self._trace.names.update((name.id, name.text) for name in message.name)
        self._trace.tracks.update((track.id, track) for track in message.track)
        for communicator in message.communicator:
            # Of a killed process's memory, which has no room for them, names come without members.
            if communicator.member_ranks or communicator.id not in self._trace.communicators:
                self._trace.communicators[communicator.id] = communicator

    def _add_cost(self, message: trace_pb2.RecorderCost) -> None:
        """Costs are since the packet before: they add up. Of the mean step times, the last ones count."""
        cost = self._trace.cost
        times = ("drain_cpu_ns", "reporter_cpu_ns", "watchdog_cpu_ns")
        for name in (*times, "span_count", "file_bytes", "event_queries"):
            setattr(cost, name, min(getattr(cost, name) + getattr(message, name), _TIME_MODULUS - 1))
        cost.longest_event_lag_ns = max(cost.longest_event_lag_ns, message.longest_event_lag_ns)
        for name in ("sampled_step_mean_ns", "unsampled_step_mean_ns"):
            if getattr(message, name):
                setattr(cost, name, getattr(message, name))
        for name in ("overhead_ratio", "overhead_low_ratio"):  # of all steps so far
            if message.HasField(name):
                setattr(cost, name, getattr(message, name))

    def _account_for_rings(self) -> None:
        """Counts spans that no file holds, and takes each span once: indices of rings tell."""
        trace = self._trace
        from_start = 0 in self._file_indices
        for ring_id, parts in self._rings.items():
            if not parts:  # all of its batches made no sense
                continue
            parts.sort()
            end = 0 if from_start else parts[0][0]
            for first, count in parts:
                trace.missing_span_count += max(first - end, 0)
                trace.repeated_span_count += max(min(end, first + count) - first, 0)
                end = max(end, first + count)
            trace.ring_ends[ring_id] = end
        if trace.repeated_span_count:
            trace.spans = trace.spans.take(first_of_each(trace.spans.ring_id, trace.spans.ring_index))


def first_of_each(first: Array, second: Array) -> Array:
    """A mask of the rows whose pair of values, such as ring and index, is not in a row before."""
    order = np.lexsort((second, first))
    is_new = np.ones(len(order), np.bool_)
    is_same = first[order][1:] == first[order][:-1]
    is_new[1:] = ~(is_same & (second[order][1:] == second[order][:-1]))
    mask = np.empty(len(order), np.bool_)
    mask[order] = is_new
    return mask


def _possible_map(clock: trace_pb2.ClockMap) -> trace_pb2.ClockMap:
    """The map. Raises WireError where it puts a device's times nowhere."""
    is_finite = math.isfinite(clock.offset_ns) and math.isfinite(clock.drift_ratio)
    times_ns = (clock.window_start_ns, clock.window_end_ns, clock.bound_ns)
    if not is_finite or max(map(abs, times_ns)) > _LARGEST_NS:
        raise WireError("a clock map has impossible numbers")
    return clock


def _has_wrong_times(start_ns: Array, duration_ns: Array) -> Array:
    wrong = (duration_ns < 0) | (duration_ns > _LARGEST_NS) | (start_ns > _LARGEST_NS) | (start_ns < -_LARGEST_NS)
    return np.asarray(wrong)


def _flags(name: str, values: list[bool], count: int) -> list[bool]:
    if len(values) <= 1:
        return [bool(values and values[0])] * count
    if len(values) != count:
        raise WireError(f"column {name} has {len(values)} values for {count} steps")
    return values


def _overlap(wanted: range, steps: tuple[int, int]) -> bool:
    return steps[0] < wanted.stop and steps[1] >= wanted.start
