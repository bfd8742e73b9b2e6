"""What can be planted in a synthetic job: one class for each cause, and how the command line spells it."""

from __future__ import annotations

import abc
import dataclasses
import zlib
from dataclasses import dataclass
from typing import ClassVar, Literal

from smon_rt.errors import SmonError


class SynthError(SmonError):
    """A synthetic job that cannot exist, or that cannot be written."""


_COORDINATES = ("dp_rank", "stage", "tp_rank")


class Planted(abc.ABC):
    """One planted cause. `dp_rank` and `stage` say where; None: everywhere, or no such coordinate."""

    cause: str
    dp_rank: int | None
    stage: int | None

    @property
    def where(self) -> dict[str, int]:
        """The coordinates it has."""
        return {name: value for name in _COORDINATES if (value := getattr(self, name, None)) is not None}

    @property
    def parameters(self) -> dict[str, float]:
        """Its sizes: a factor, milliseconds, a probability."""
        own = dataclasses.asdict(self)  # type: ignore[call-overload]
        return {name: value for name, value in own.items() if name not in ("cause", *_COORDINATES)}

    @property
    def place(self) -> tuple[str | int | None, ...]:
        """What no other plant of the job may have too."""
        return self.cause, self.dp_rank, self.stage

    @property
    def stream_key(self) -> int:
        """Chooses its random numbers, so that they are the same whatever else is planted."""
        return zlib.crc32(repr(self.place).encode())

    def covers(self, stage: int) -> bool:
        """Whether something of it is on this stage."""
        return self.stage is None or self.stage == stage

    @property
    def lanes(self) -> slice | int:
        """The dp ranks it is on, as an index."""
        return slice(None) if self.dp_rank is None else self.dp_rank

    def problem(self, dp: int, pp: int, vpp: int) -> str | None:
        """What is wrong with it in a job of this layout, or None."""
        if self.stage is not None and not 0 <= self.stage < pp:
            return f"there is no stage {self.stage}, stages are 0 to {pp - 1}"
        if self.dp_rank is not None and not 0 <= self.dp_rank < dp:
            return f"there is no dp rank {self.dp_rank}, dp ranks are 0 to {dp - 1}"
        return self._own_problem(dp, pp, vpp)

    @abc.abstractmethod
    def _own_problem(self, dp: int, pp: int, vpp: int) -> str | None:
        """What is wrong with its sizes, or with this kind of cause in such a layout; None if nothing is."""

    def _place_text(self) -> str:
        return ",".join(str(value) for value in (self.dp_rank, self.stage) if value is not None)


def _wrong_factor(factor: float) -> str | None:
    return None if 1e-3 <= factor <= 1e3 else "give a factor from 0.001 to 1000"


def _wrong_ms(value: float) -> str | None:
    return None if 1e-6 <= value <= 1e6 else "give milliseconds from 1e-6 to 1e6"


@dataclass(frozen=True)
class Plant(Planted):
    """A slow worker or stage: its forward and backward computes take `factor` times as long.

    `dp_rank` None means every dp rank of `stage`.
    """

    stage: int
    factor: float
    dp_rank: int | None = None

    @property
    def cause(self) -> str:  # type: ignore[override]
        """The name of the cause this plant is: `worker` or `stage`."""
        return "stage" if self.dp_rank is None else "worker"

    def __str__(self) -> str:
        return f"{self.cause}={self._place_text()}:{self.factor:g}"

    def _own_problem(self, dp: int, pp: int, vpp: int) -> str | None:
        return _wrong_factor(self.factor)


@dataclass(frozen=True)
class LongSequences(Planted):
    """Microbatches of sequences whose lengths vary: `spread` is the standard deviation of the logarithm of a length.

    A microbatch is packed with sequences up to a fixed number of tokens. Half of a typical compute is attention, whose
    time goes with the sum of the squares of the lengths; the other half goes with the tokens. Forward and backward of
    a microbatch follow each other on every stage. The median microbatch of the job is not slowed.
    """

    spread: float
    cause: ClassVar[str] = "sequence_length"  # type: ignore[misc]
    dp_rank: ClassVar[None] = None  # type: ignore[misc]
    stage: ClassVar[None] = None  # type: ignore[misc]

    def __str__(self) -> str:
        return f"{self.cause}={self.spread:g}"

    def _own_problem(self, dp: int, pp: int, vpp: int) -> str | None:
        return None if 0 < self.spread <= 4 else "give a spread above 0 and up to 4, as 1"


@dataclass(frozen=True)
class Pauses(Planted):
    """The host stands still for `pause_ms`: a garbage collection, or data that comes late.

    Random: each worker that it covers, in each step with `probability`. Planned: in every `every_steps`-th step, all of
    them together. Data is waited for before the first forward, and a planned collection is made there; a random one
    falls into some compute.
    """

    cause: Literal["gc", "data_loading"]
    pause_ms: float
    probability: float = 1.0
    every_steps: int = 0
    dp_rank: int | None = None
    stage: int | None = None

    @property
    def is_inside_a_compute(self) -> bool:
        return self.cause == "gc" and not self.every_steps

    def __str__(self) -> str:
        when = f"/{self.every_steps}" if self.every_steps else f"@{self.probability:g}"
        place = f"{self._place_text()}:" if self.stage is not None else ""
        return f"{self.cause}={place}{self.pause_ms:g}{when}"

    def _own_problem(self, dp: int, pp: int, vpp: int) -> str | None:
        if not 0 < self.probability <= 1:
            return "give a probability above 0 and up to 1"
        if self.every_steps < 0:
            return "give a number of steps of 1 or more"
        return _wrong_ms(self.pause_ms)


@dataclass(frozen=True)
class SlowLink(Planted):
    """Messages between `stage` and the stage after it take `factor` times as long, of one pipeline or of all."""

    stage: int
    factor: float
    dp_rank: int | None = None
    cause: ClassVar[str] = "pp_communication"  # type: ignore[misc]

    def __str__(self) -> str:
        return f"{self.cause}={self._place_text()}:{self.factor:g}"

    def is_between(self, sender: int, receiver: int, pp: int) -> bool:
        """Whether messages between two stages go over it."""
        ends = (self.stage, (self.stage + 1) % pp)
        return (sender, receiver) == ends or (receiver, sender) == ends

    def _own_problem(self, dp: int, pp: int, vpp: int) -> str | None:
        if pp == 1:
            return "with pp 1 there are no links between stages"
        if self.stage == pp - 1 and vpp == 1:
            return f"no stage comes after {self.stage}, give one from 0 to {pp - 2}"
        return _wrong_factor(self.factor)


@dataclass(frozen=True)
class SlowGroup(Planted):
    """The collectives among the dp ranks of one stage take `factor` times as long."""

    stage: int
    factor: float
    cause: ClassVar[str] = "dp_communication"  # type: ignore[misc]
    dp_rank: ClassVar[None] = None  # type: ignore[misc]

    def __str__(self) -> str:
        return f"{self.cause}={self.stage}:{self.factor:g}"

    def _own_problem(self, dp: int, pp: int, vpp: int) -> str | None:
        if dp == 1:
            return "with dp 1 there is no data parallel communication"
        return _wrong_factor(self.factor)


@dataclass(frozen=True)
class SlowLaunch(Planted):
    """The host launches computes late: by an exponential delay with this mean, before each compute."""

    delay_ms: float
    dp_rank: int | None = None
    stage: int | None = None
    cause: ClassVar[str] = "host_launch_delay"  # type: ignore[misc]

    def __str__(self) -> str:
        place = f"{self._place_text()}:" if self.stage is not None else ""
        return f"{self.cause}={place}{self.delay_ms:g}"

    def _own_problem(self, dp: int, pp: int, vpp: int) -> str | None:
        return _wrong_ms(self.delay_ms)


@dataclass(frozen=True)
class SlowMember(Planted):
    """One tp member of a worker takes `factor` times as long for its own work; the others wait in their collectives."""

    dp_rank: int
    stage: int
    tp_rank: int
    factor: float
    cause: ClassVar[str] = "tensor_parallel_member"  # type: ignore[misc]

    def __str__(self) -> str:
        return f"tp_member={self._place_text()},{self.tp_rank}:{self.factor:g}"

    @property
    def place(self) -> tuple[str | int | None, ...]:
        return *super().place, self.tp_rank

    def _own_problem(self, dp: int, pp: int, vpp: int) -> str | None:
        return _wrong_factor(self.factor)


AnyPlant = Plant | LongSequences | Pauses | SlowLink | SlowGroup | SlowLaunch | SlowMember

#: How each cause is written after --plant.
FORMS = {
    "worker": "worker=DP,STAGE:FACTOR",
    "stage": "stage=STAGE:FACTOR",
    "sequence_length": "sequence_length=SPREAD",
    "tp_member": "tp_member=DP,STAGE,TP:FACTOR",
    "gc": "gc=[DP,STAGE:]MS@PROBABILITY or gc=[DP,STAGE:]MS/STEPS",
    "data_loading": "data_loading=[DP,STAGE:]MS@PROBABILITY or data_loading=[DP,STAGE:]MS/STEPS",
    "pp_communication": "pp_communication=[DP,]STAGE:FACTOR",
    "dp_communication": "dp_communication=STAGE:FACTOR",
    "host_launch_delay": "host_launch_delay=[DP,STAGE:]MS",
}


def parse_plant(text: str) -> AnyPlant:
    """Read one of `FORMS`; raises SynthError with the right form.

    >>> parse_plant("worker=1,0:1.5")
    Plant(stage=0, factor=1.5, dp_rank=1)
    >>> parse_plant("gc=80@0.2")
    Pauses(cause='gc', pause_ms=80.0, probability=0.2, every_steps=0, dp_rank=None, stage=None)
    """
    cause, _, rest = text.partition("=")
    if cause not in FORMS:
        raise SynthError(
            f"--plant {text!r}: write CAUSE=…, as worker=1,0:1.5 or gc=80@0.2; causes are {', '.join(FORMS)}"
        )
    place, colon, size = rest.rpartition(":")
    try:
        numbers = [int(number) for number in place.split(",")] if colon else []
        plant = _plant(cause, numbers, size)
    except ValueError:
        plant = None
    if plant is None:
        raise SynthError(f"--plant {text!r}: write {FORMS[cause]}")
    return plant


def _plant(cause: str, place: list[int], size: str) -> AnyPlant | None:
    """The plant, or None where the place does not fit the cause. Raises ValueError for what is no number."""
    if cause == "tp_member":
        return SlowMember(place[0], place[1], place[2], float(size)) if len(place) == 3 else None
    dp_rank, stage = [None, None, *place][-2:]
    has_worker = len(place) == 2
    if cause == "sequence_length" and not place:
        return LongSequences(float(size))
    if cause == "host_launch_delay" and len(place) in (0, 2):
        return SlowLaunch(float(size), dp_rank, stage)
    if cause in ("gc", "data_loading") and len(place) in (0, 2):
        return _pauses("gc" if cause == "gc" else "data_loading", dp_rank, stage, size)
    if stage is None:
        return None
    if (cause == "worker" and has_worker) or (cause == "stage" and len(place) == 1):
        return Plant(stage, float(size), dp_rank)
    if cause == "pp_communication" and len(place) <= 2:
        return SlowLink(stage, float(size), dp_rank)
    if cause == "dp_communication" and len(place) == 1:
        return SlowGroup(stage, float(size))
    return None


def _pauses(cause: Literal["gc", "data_loading"], dp_rank: int | None, stage: int | None, size: str) -> Pauses | None:
    if "/" in size:
        pause, _, every = size.partition("/")
        steps = int(every)
        return Pauses(cause, float(pause), every_steps=steps, dp_rank=dp_rank, stage=stage) if steps > 0 else None
    pause, at, probability = size.partition("@")
    return Pauses(cause, float(pause), float(probability), dp_rank=dp_rank, stage=stage) if at else None
