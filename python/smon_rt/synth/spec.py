"""What a synthetic job is made of: its layout, durations, noise, how it is recorded, and what is planted in it."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal

from smon_rt.synth.plants import AnyPlant, Pauses, SlowLaunch, SlowMember, SynthError

Schedule = Literal["1f1b", "interleaved"]

# Above this the arrays of one replay no longer fit an ordinary machine (24 bytes an op and replay, several replays).
MAX_OP_COUNT = 200_000_000
# Ops of one lane (one step of one dp rank) are Python objects; ranks are 32-bit in the trace.
MAX_LANE_OP_COUNT = 2_000_000
MAX_WORLD_SIZE = 2**31 - 1
_MOST_TP_COLLECTIVES = 1024

_SIZE_LIMITS = {"dp": 4096, "pp": 1024, "tp": 1024, "vpp": 256, "microbatches": 65536, "steps": 1_000_000}


@dataclass(frozen=True)
class Durations:
    """How long each kind of op takes without noise, in milliseconds.

    `forward_ms` and `backward_ms` are one microbatch through one stage, `dp_comm_ms` one collective of a stage's
    parameters; all three are split evenly over the stage's chunks. The others are one op.
    """

    forward_ms: float = 10.0
    backward_ms: float = 20.0
    p2p_ms: float = 0.4
    no_op_ms: float = 0.005
    dp_comm_ms: float = 8.0
    separate_grads_ms: float = 1.0
    gc_ms: float = 0.02
    layernorm_ms: float = 0.05
    embedding_ms: float = 1.0
    clip_ms: float = 0.5
    optimizer_ms: float = 4.0


@dataclass(frozen=True)
class JobSpec:
    """Everything that decides a synthetic job; the same spec gives the same bytes.

    `noise` and `comm_noise` are coefficients of variation of log-normal noise (mean 1), drawn for each op: `noise` on
    compute durations (forward, backward, gc, optimizer), `comm_noise` on transfers. `launch_delay_ms` is the mean of an
    exponential delay before each op; 0 launches at once. `skip_first_recv` leaves out the first forward receive
    of stage 0 in an interleaved job, as some recorders do.

    `tail_ratio` of the computes are slowed besides, by a factor with a heavy (Pareto) tail. `fewer_microbatches`: each
    dp rank has in each step up to so many microbatches less. `data_loading_ms` is what each worker takes for its data
    before each step. `tp_collectives`: so many of its tp members each compute has, the last at its end; `noise` brings
    them there at other times. `gpu_times`: ranks compute on GPUs, whose times are recorded, at most `gpu_bound_us` off
    their host's clock. `hosts`, `clock_offset_ms` (at most, either way), `clock_drift_ppm`, `drop_ratio` and
    `missing_ranks` are of the recording, not of the job: they change no truth, and only a directory of `.smon` files
    can have them. Raises SynthError when a value makes no sense.
    """

    dp: int = 1
    pp: int = 1
    tp: int = 1
    vpp: int = 1
    microbatches: int = 8
    steps: int = 1
    schedule: Schedule | None = None
    noise: float = 0.0
    comm_noise: float = 0.0
    launch_delay_ms: float = 0.0
    overlap: bool = False
    skip_first_recv: bool = False
    tail_ratio: float = 0.0
    fewer_microbatches: int = 0
    data_loading_ms: float = 0.0
    hosts: int = 1
    clock_offset_ms: float = 0.0
    clock_drift_ppm: float = 0.0
    drop_ratio: float = 0.0
    tp_collectives: int = 0
    gpu_times: bool = False
    gpu_bound_us: float = 20.0
    missing_ranks: tuple[int, ...] = ()
    plants: tuple[AnyPlant, ...] = ()
    durations: Durations = dataclasses.field(default_factory=Durations)
    seed: int = 0
    name: str = "synthetic"

    def __post_init__(self) -> None:
        self._check_layout()
        self._check_numbers()
        self._check_recording()
        self._check_plants()
        self._check_members()
        self._check_gpu_times()
        if self.world_size > MAX_WORLD_SIZE:
            raise SynthError(
                f"this job has {self.world_size:,} ranks, the most is {MAX_WORLD_SIZE:,}: lower dp, pp or tp"
            )
        lane_op_count = self.op_count // (self.dp * self.steps)
        if lane_op_count > MAX_LANE_OP_COUNT:
            raise SynthError(
                f"a step of this job has {lane_op_count:,} ops for each dp rank, the most is {MAX_LANE_OP_COUNT:,}:"
                " lower microbatches or pp"
            )
        if self.op_count > MAX_OP_COUNT:
            raise SynthError(f"this job has {self.op_count:,} ops, the most is {MAX_OP_COUNT:,}: lower steps or dp")

    @property
    def world_size(self) -> int:
        """Ranks of the job."""
        return self.dp * self.pp * self.tp

    @property
    def chunk_count(self) -> int:
        """Global chunks the model is cut into."""
        return self.pp * self.vpp

    @property
    def op_count(self) -> int:
        """At most so many ops the whole trace has."""
        computes = self.microbatches * self.vpp
        p2p = 4 if self.pp > 1 else 0
        return self.dp * self.pp * self.steps * (computes * (2 + p2p) + 2 * self.vpp + 6)

    @property
    def resolved_schedule(self) -> Schedule:
        """The schedule in use: `1f1b` with one chunk a stage, else `interleaved`."""
        return "1f1b" if self.vpp == 1 else "interleaved"

    @property
    def parquet_obstacle(self) -> str | None:
        """What of this job the artifact's columns cannot hold, or None."""
        plants = [str(plant) for plant in self.plants if isinstance(plant, Pauses)]
        if plants:
            return f"--plant {plants[0]}"
        names = (
            "fewer_microbatches",
            "tp_collectives",
            "gpu_times",
            "data_loading_ms",
            "clock_offset_ms",
            "clock_drift_ppm",
            "drop_ratio",
        )
        found = next((name for name in names if getattr(self, name)), None)
        if self.hosts > 1:
            found = "hosts"
        return "--missing-rank" if self.missing_ranks else found and f"--{found.replace('_', '-')}"

    def is_launched_late(self, stage: int, dp_rank: int) -> bool:
        """Whether the host of a worker launches some ops only when the worker could long have run them."""
        plants = [plant for plant in self.plants if isinstance(plant, SlowLaunch) and plant.covers(stage)]
        return self.launch_delay_ms > 0 or any(plant.dp_rank in (None, dp_rank) for plant in plants)

    def without_plant(self, *indices: int) -> JobSpec:
        """The same job and the same random draws, but for the plants at `indices`."""
        kept = tuple(plant for index, plant in enumerate(self.plants) if index not in indices)
        return dataclasses.replace(self, plants=kept)

    def _check_layout(self) -> None:
        for name, limit in _SIZE_LIMITS.items():
            value = getattr(self, name)
            if not 1 <= value <= limit:
                raise SynthError(f"{name} is {value}: give a whole number from 1 to {limit}")
        if self.schedule not in (None, "1f1b", "interleaved"):
            raise SynthError(f"schedule is {self.schedule!r}: choose 1f1b or interleaved")
        if self.schedule == "1f1b" and self.vpp > 1:
            raise SynthError(f"schedule 1f1b has one chunk a stage, not vpp {self.vpp}: use interleaved, or vpp 1")
        if self.schedule == "interleaved" and self.vpp == 1:
            raise SynthError("schedule interleaved needs several chunks a stage: give vpp 2 or more")
        if self.vpp > 1 and self.pp == 1:
            raise SynthError(f"vpp {self.vpp} with pp 1: an interleaved pipeline needs pp 2 or more")
        if self.vpp > 1 and self.microbatches % self.pp:
            raise SynthError(
                f"{self.microbatches} microbatches with pp {self.pp}: the interleaved schedule needs a multiple of pp"
            )
        if self.overlap and self.dp == 1:
            raise SynthError("overlap with dp 1: there is no gradient reduction to overlap, give dp 2 or more")
        if self.skip_first_recv and self.vpp == 1:
            raise SynthError(
                "skip_first_recv with vpp 1: stage 0 has no forward receive to leave out, give vpp 2 or more"
            )
        if self.seed < 0:
            raise SynthError(f"seed is {self.seed}: give a whole number of 0 or more")

    def _check_numbers(self) -> None:
        for name in ("noise", "comm_noise"):
            value = getattr(self, name)
            if not 0 <= value <= 10:  # also refuses NaN
                raise SynthError(f"{name} is {value}: give a coefficient of variation from 0 to 10, as 0.05")
        if not 0 <= self.launch_delay_ms <= 1e6:
            raise SynthError(f"launch_delay_ms is {self.launch_delay_ms}: give milliseconds from 0 to 1e6")
        for field in dataclasses.fields(self.durations):
            value = getattr(self.durations, field.name)
            if not (1e-6 <= value <= 1e6 and math.isfinite(value)):
                raise SynthError(f"{field.name} is {value}: give milliseconds from 1e-6 to 1e6")

    def _check_recording(self) -> None:
        for name in ("tail_ratio", "drop_ratio"):
            value = getattr(self, name)
            if not 0 <= value < 1:  # also refuses NaN
                raise SynthError(f"{name} is {value}: give a share from 0 to below 1, as 0.01")
        for name, limit in (("data_loading_ms", 1e6), ("clock_offset_ms", 1e9), ("clock_drift_ppm", 500.0)):
            value = getattr(self, name)
            if not 0 <= value <= limit:
                raise SynthError(f"{name} is {value}: give a number from 0 to {limit:g}")
        if not 1 <= self.hosts <= self.world_size:
            raise SynthError(f"hosts is {self.hosts}: give 1 to {self.world_size}, the number of ranks")
        for rank in self.missing_ranks:
            if not 0 <= rank < self.world_size:
                raise SynthError(f"there is no rank {rank} to miss, ranks are 0 to {self.world_size - 1}")
        if len(set(self.missing_ranks)) == self.world_size:
            raise SynthError("all ranks are missing: leave at least one")
        self._check_microbatch_counts()

    def _check_members(self) -> None:
        if not 0 <= self.tp_collectives <= _MOST_TP_COLLECTIVES:
            raise SynthError(f"tp_collectives is {self.tp_collectives}: give a number from 0 to {_MOST_TP_COLLECTIVES}")
        if self.tp_collectives and self.tp == 1:
            raise SynthError("tp_collectives with tp 1: a worker of one rank has none, give tp 2 or more")
        for plant in self.plants:
            if not isinstance(plant, SlowMember):
                continue
            if not self.tp_collectives:
                raise SynthError(f"plant {plant}: without collectives of tp members nobody waits, give tp_collectives")
            if not 0 <= plant.tp_rank < self.tp:
                raise SynthError(f"plant {plant}: there is no tp rank {plant.tp_rank}, tp ranks are 0 to {self.tp - 1}")

    def _check_gpu_times(self) -> None:
        if not 0 <= self.gpu_bound_us <= 1e6:
            raise SynthError(f"gpu_bound_us is {self.gpu_bound_us}: give a number from 0 to 1e6")
        if not self.gpu_times:
            return
        if self.tp_collectives:
            raise SynthError(
                "tp_collectives with gpu_times: around these no events are recorded, leave one of them out"
            )
        for plant in self.plants:
            if isinstance(plant, Pauses) and plant.is_inside_a_compute:
                raise SynthError(
                    f"plant {plant}: a GPU computes on while its host collects; with gpu_times give gc=…MS/STEPS"
                )

    def _check_microbatch_counts(self) -> None:
        if not self.fewer_microbatches:
            return
        if self.vpp > 1:
            raise SynthError(f"fewer_microbatches with vpp {self.vpp}: only a 1f1b schedule may have uneven counts")
        # From pp on the order of a stage does not depend on their number.
        if not 0 < self.fewer_microbatches <= self.microbatches - self.pp:
            raise SynthError(
                f"fewer_microbatches is {self.fewer_microbatches}: at least pp ({self.pp}) of the {self.microbatches} "
                f"microbatches must stay, give 0 to {max(self.microbatches - self.pp, 0)}"
            )

    def _check_plants(self) -> None:
        places = set()
        for plant in self.plants:
            problem = plant.problem(self.dp, self.pp, self.vpp)
            if problem is not None:
                raise SynthError(f"plant {plant}: {problem}")
            if plant.place in places:
                raise SynthError(f"plant {plant}: this {plant.cause} is planted twice, give it once")
            places.add(plant.place)
