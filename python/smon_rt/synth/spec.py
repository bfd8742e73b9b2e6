"""What a synthetic job is made of: its layout, its durations, its noise and the slowness planted in it."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal

from smon_rt.errors import SmonError

Schedule = Literal["1f1b", "interleaved"]

# Above this the arrays of one replay no longer fit an ordinary machine (24 bytes an op and replay, several replays).
MAX_OP_COUNT = 200_000_000
# Ops of one lane (one step of one dp rank) are Python objects; ranks are 32-bit in the trace.
MAX_LANE_OP_COUNT = 2_000_000
MAX_WORLD_SIZE = 2**31 - 1

_SIZE_LIMITS = {"dp": 4096, "pp": 1024, "tp": 1024, "vpp": 256, "microbatches": 65536, "steps": 1_000_000}


class SynthError(SmonError):
    """A synthetic job that cannot exist, or that cannot be written."""


@dataclass(frozen=True)
class Plant:
    """A known slowness: forward and backward computes take `factor` times as long, on one worker or on a whole stage.

    `dp_rank` None means every dp rank of `stage`.
    """

    stage: int
    factor: float
    dp_rank: int | None = None

    @property
    def cause(self) -> str:
        """The name of the cause this plant is: `worker` or `stage`."""
        return "stage" if self.dp_rank is None else "worker"

    def __str__(self) -> str:
        place = f"{self.stage}" if self.dp_rank is None else f"{self.dp_rank},{self.stage}"
        return f"{self.cause}={place}:{self.factor:g}"


def parse_plant(text: str) -> Plant:
    """Read `worker=DP,STAGE:FACTOR` or `stage=STAGE:FACTOR`.

    >>> parse_plant("worker=1,0:1.5")
    Plant(stage=0, factor=1.5, dp_rank=1)
    """
    wrong = SynthError(f"--plant {text!r}: write worker=DP,STAGE:FACTOR or stage=STAGE:FACTOR, as worker=1,0:1.5")
    cause, equals, rest = text.partition("=")
    place, colon, factor_text = rest.rpartition(":")
    if not equals or not colon:
        raise wrong
    try:
        numbers = [int(number) for number in place.split(",")]
        factor = float(factor_text)
    except ValueError:
        raise wrong from None
    if cause == "worker" and len(numbers) == 2:
        return Plant(stage=numbers[1], factor=factor, dp_rank=numbers[0])
    if cause == "stage" and len(numbers) == 1:
        return Plant(stage=numbers[0], factor=factor)
    raise wrong


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
    of stage 0 in an interleaved job, as some recorders do. Raises SynthError when a value makes no sense.
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
    plants: tuple[Plant, ...] = ()
    durations: Durations = dataclasses.field(default_factory=Durations)
    seed: int = 0
    name: str = "synthetic"

    def __post_init__(self) -> None:
        self._check_layout()
        self._check_numbers()
        self._check_plants()
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

    def without_plant(self, index: int) -> JobSpec:
        """The same job and the same random draws, but for plant `index`."""
        return dataclasses.replace(self, plants=self.plants[:index] + self.plants[index + 1 :])

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

    def _check_plants(self) -> None:
        places = set()
        for plant in self.plants:
            if not 0 <= plant.stage < self.pp:
                raise SynthError(f"plant {plant}: there is no stage {plant.stage}, stages are 0 to {self.pp - 1}")
            if plant.dp_rank is not None and not 0 <= plant.dp_rank < self.dp:
                raise SynthError(f"plant {plant}: there is no dp rank {plant.dp_rank}, dp ranks are 0 to {self.dp - 1}")
            if not 1e-3 <= plant.factor <= 1e3:
                raise SynthError(f"plant {plant}: give a factor from 0.001 to 1000")
            if (plant.dp_rank, plant.stage) in places:
                raise SynthError(f"plant {plant}: this {plant.cause} is planted twice, give one factor")
            places.add((plant.dp_rank, plant.stage))
