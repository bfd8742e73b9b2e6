"""Plays a program: when every op of every lane starts and ends, given its duration.

An event simulation. Each stream is a coroutine that launches its ops one after the other and parks on an op that has
not ended; ops that meet (the two ends of a message, a collective) end when the last of them has started. A value is a
vector over all lanes (step, dp rank), so the events are those of one lane and the arithmetic is numpy's.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

import numpy as np

from smon_rt.synth.draws import Draws
from smon_rt.synth.durations import FloatArray
from smon_rt.synth.plants import SynthError
from smon_rt.synth.schedule import DP_SYNC_KINDS, Op, Program


@dataclass(frozen=True)
class Timeline:
    """Starts and ends, float64 [op row, step, dp rank] in ns from the step's start.

    Ops that a lane lacks take no time there. `has_host_work`: some worker waits for its data, or collects, before it
    does anything else in its step, which begins at 0.
    """

    program: Program
    starts_ns: FloatArray
    ends_ns: FloatArray
    has_host_work: bool = False

    def step_times_ns(self) -> FloatArray:
        """End of the last optimizer of each step, [step] in ns from the step's start."""
        rows = self.program.rows_of("optimizer")
        latest = self.ends_ns[rows[0]].copy()
        for row in rows[1:]:
            np.maximum(latest, self.ends_ns[row], out=latest)
        return np.asarray(latest.max(axis=-1))

    def span_ns(self) -> tuple[FloatArray, FloatArray]:
        """First start and last end of anything in each step, both [step] in ns from the step's start."""
        first = self.starts_ns.min(axis=(0, 2))
        return np.zeros_like(first) if self.has_host_work else first, self.ends_ns.max(axis=(0, 2))


class _Run:
    """One play of a program."""

    def __init__(self, program: Program, draws: Draws) -> None:
        self.program = program
        self.draws = draws
        self.durations = draws.durations_ns
        self.starts = np.empty_like(self.durations)
        self.ends = np.empty_like(self.durations)
        self.absent = None if draws.is_present is None else ~draws.is_present
        self.ended = bytearray(len(program.ops))
        self.arrived: dict[tuple[object, ...], int] = {}
        self.parked: dict[int, list[Generator[int, None, None]]] = {}
        self.ready: list[Generator[int, None, None]] = []

    def play(self) -> Timeline:
        self.ready = [self._launch(stream) for stream in self.program.streams]
        while self.ready:
            stream = self.ready.pop()
            row = next(stream, None)
            if row is not None:
                self.parked.setdefault(row, []).append(stream)
        if not all(self.ended):
            stuck = self.program.ops[self.ended.index(0)]
            raise SynthError(f"the schedule deadlocks: {stuck.kind} {stuck.seq_id} of stage {stuck.stage} never ends")
        return Timeline(self.program, self.starts, self.ends, self.draws.begins_ns is not None)

    def _launch(self, stream: Sequence[Op]) -> Generator[int, None, None]:
        """Launch the stream's ops; yields a row to be woken when it has ended."""
        previous: list[int] = []
        for op in stream:
            waits = previous + op.waits
            for row in waits:
                if not self.ended[row]:
                    yield row
            start = self.starts[op.row]
            start[...] = 0.0 if self.draws.begins_ns is None else self.draws.begins_ns[op.stage]
            before = self.ends[previous[0]] if previous else start.copy()
            for row in waits:
                np.maximum(start, self.ends[row], out=start)
            if self.draws.launch_delays_ns is not None:
                start += self.draws.launch_delays_ns[op.row]
            if self.absent is not None:
                # Nobody waits for what is not there: it is over as soon as the op before it.
                np.copyto(start, before, where=self.absent[op.row])
            self._arrive(op)
            previous = [op.row]

    def _arrive(self, op: Op) -> None:
        """End the op, or its whole meeting if it is the last one to come."""
        members = [op]
        if op.meeting is not None:
            members = self.program.meetings[op.meeting]
            self.arrived[op.meeting] = self.arrived.get(op.meeting, 0) + 1
            if self.arrived[op.meeting] < len(members):
                return
        gate = self.starts[members[0].row]
        for member in members[1:]:
            gate = np.maximum(gate, self.starts[member.row])
        if op.kind in DP_SYNC_KINDS:
            gate = gate.max(axis=-1, keepdims=True)
        for member in members:
            end = self.ends[member.row]
            np.add(gate, self.durations[member.row], out=end)
            if self.absent is not None:
                np.copyto(end, self.starts[member.row], where=self.absent[member.row])
            self.ended[member.row] = 1
            self.ready.extend(self.parked.pop(member.row, ()))


def play(program: Program, draws: Draws) -> Timeline:
    """Play `program` with these durations (own transfers for communication ops), delays and pauses."""
    return _Run(program, draws).play()
