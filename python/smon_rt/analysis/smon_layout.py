"""Where the ranks of a recorded job are in its parallel dimensions, and whether they agree about it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from smon_rt._proto import trace_pb2
from smon_rt.analysis.input_file import shown
from smon_rt.analysis.job_meta import Job
from smon_rt.analysis.recording import Member
from smon_rt.errors import TraceError
from smon_rt.trace.rank_trace import RankTrace

DIMENSIONS = ("dp", "pp", "tp", "cp")
_SIZES = tuple(f"{name}_size" for name in DIMENSIONS)
_HOW = "call smon_rt.set_layout(smon_rt.Layout(dp_rank=, dp_size=, stage=, pp_size=, …)) in every rank"
_HOW_NOW = "give it as in --layout pp=2,dp=4 (the outermost dimension first), or " + _HOW
# More than this no job has, and tables of ranks must fit in memory.
_MOST_RANKS = 1 << 20


@dataclass
class JobLayout:
    """Collects the coordinates of a job's ranks. Every contradiction is a TraceError of one line.

    `given` are sizes by dimension, the outermost first, for ranks that recorded no layout.
    """

    given: Mapping[str, int] | None = None
    sizes: dict[str, int] = field(default_factory=dict)
    vpp_size: int = 1
    world_size: int = 0
    workers: dict[tuple[int, int], list[Member]] = field(default_factory=dict)
    _first: str = ""
    _by_place: dict[tuple[int, ...], int] = field(default_factory=dict)

    def add(self, trace: RankTrace) -> int:
        """Takes a rank; returns the number of its worker, dp_rank * pp_size + stage."""
        identity = trace.identity
        who = f"{shown(trace.files[0])}: rank {trace.rank}"
        layout = self._layout_of(trace, who)
        sizes = {name: max(getattr(layout, name), 1) for name in _SIZES}
        if not self.sizes:
            self._take_sizes(trace, sizes, who)
        elif sizes != self.sizes or identity.world_size != self.world_size:
            mine, theirs = (_words(part, world) for part, world in ((sizes, identity.world_size), self._all_sizes()))
            raise TraceError(f"{who} says {mine}, but {self._first} {theirs}; give the files of one job, and {_HOW}")
        if not trace.rank < self.world_size:
            raise TraceError(f"{who} is beyond the job's world size {self.world_size}; give the files of one job")
        self.vpp_size = max(self.vpp_size, layout.vpp_size)
        place = (layout.dp_rank, layout.stage, layout.tp_rank, layout.cp_rank)
        for name, value, size in zip(("dp_rank", "stage", "tp_rank", "cp_rank"), place, sizes.values(), strict=True):
            if value < 0:
                raise TraceError(f"{who} does not know its {name}; {_HOW}")
            if value >= size:
                raise TraceError(f"{who} says {name} {value} of {size}; {_HOW}")
        other = self._by_place.setdefault(place, trace.rank)
        if other != trace.rank:
            words = ", ".join(f"{n} {v}" for n, v in zip(("dp", "stage", "tp", "cp"), place, strict=True))
            raise TraceError(f"{who} and rank {other} both say {words}; {_HOW}")
        member = Member(
            rank=trace.rank,
            local_rank=identity.local_rank,
            tp_rank=layout.tp_rank,
            cp_rank=layout.cp_rank,
            host=identity.host,
            gpu_uuid=identity.gpu_uuid,
        )
        self.workers.setdefault(place[:2], []).append(member)
        return layout.dp_rank * self.sizes["pp_size"] + layout.stage

    def job(self, name: str) -> Job:
        """The job's record."""
        sizes = self.sizes | {"vpp_size": self.vpp_size, "world_size": self.world_size}
        # Each span says where its times are from; layers are not recorded.
        return Job(name=name, has_device_times=None, layers=None, **sizes)

    def _layout_of(self, trace: RankTrace, who: str) -> trace_pb2.Layout:
        """What a rank recorded, or what was given in its place."""
        recorded, world = trace.identity.layout, trace.identity.world_size
        if self.given is None:
            return recorded
        if math.prod(max(getattr(recorded, name), 1) for name in _SIZES) > 1:
            sizes = {name: max(getattr(recorded, name), 1) for name in _SIZES}
            raise TraceError(f"{who} recorded its layout, {_words(sizes, world)}; leave --layout out")
        if math.prod(self.given.values()) != world:
            words = " · ".join(f"{name} {size}" for name, size in self.given.items())
            raise TraceError(f"{who}: --layout says {words}, but the world size is {world}; correct --layout")
        place, rest = {}, trace.rank
        for name, size in reversed(list(self.given.items())):
            rest, place[name] = divmod(rest, size)
        made = trace_pb2.Layout(vpp_size=recorded.vpp_size)
        for name, size in self.given.items():
            setattr(made, f"{name}_size", size)
            setattr(made, "stage" if name == "pp" else f"{name}_rank", place[name])
        return made

    def _take_sizes(self, trace: RankTrace, sizes: dict[str, int], who: str) -> None:
        world = trace.identity.world_size
        if world > 1 and math.prod(sizes.values()) == 1:
            raise TraceError(
                f"{who} of {world} recorded no layout, so nobody knows who computes what (did the script set "
                f"torch.distributed up?); {_HOW_NOW}"
            )
        if math.prod(sizes.values()) != max(world, 1):
            raise TraceError(f"{who} says {_words(sizes, world)}: the product is {math.prod(sizes.values())}; {_HOW}")
        if world > _MOST_RANKS:
            raise TraceError(f"{who} says {_words(sizes, world)}: more ranks than {_MOST_RANKS:,}; {_HOW}")
        self.sizes, self.world_size, self._first = sizes, max(world, 1), f"rank {trace.rank}"

    def _all_sizes(self) -> tuple[dict[str, int], int]:
        return self.sizes, self.world_size


def _words(sizes: dict[str, int], world: int) -> str:
    return (
        ", ".join(f"{name.removesuffix('_size')} {size}" for name, size in sizes.items()) + f" and world size {world}"
    )
