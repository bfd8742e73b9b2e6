"""The report of one job: everything that the engine found, named as in the JSON (docs/report.md)."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any

from smon_rt.analysis.advice import Advice
from smon_rt.analysis.cause_words import BEYOND_SLOWDOWN
from smon_rt.analysis.causes import Cause, Where, find_causes
from smon_rt.analysis.communication import Communication, with_bandwidth
from smon_rt.analysis.engine import Source
from smon_rt.analysis.fidelity import Fidelity, completed, fidelity_of, located
from smon_rt.analysis.options import ReportOptions
from smon_rt.analysis.raw import RawContribution, RawResult
from smon_rt.analysis.recording import Recording
from smon_rt.analysis.situation import Situation
from smon_rt.analysis.units import finite_or_none
from smon_rt.analysis.verdict import Verdict, draw_verdict
from smon_rt.analysis.worker_words import Machines

if TYPE_CHECKING:
    from smon_rt.analysis.importer import Trace
    from smon_rt.analysis.what_if import Answer

__all__ = ["Advice", "Cause", "Report", "ReportOptions", "Verdict", "Where"]

#: One value a step; keys are step numbers.
ByStep = dict[str, float]


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with its 95 % bootstrap interval over steps; no interval with a single step."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class StepTime:
    """Mean step time in seconds: as recorded, without launch delays, and without stragglers too."""

    base: float
    nodelay: float
    ideal: float


@dataclass(frozen=True, slots=True)
class StepTimeByStep:
    """`StepTime` of every step."""

    base: ByStep
    nodelay: ByStep
    ideal: ByStep


@dataclass(frozen=True, slots=True)
class Job:
    """The job and its parallel layout: world = dp · pp · tp · cp."""

    name: str
    dp: int
    pp: int
    tp: int
    cp: int
    vpp: int
    world: int


@dataclass(frozen=True, slots=True)
class Contribution:
    """Behind M_W, M_W exact, M_S: the workers, and mean step times with only them fixed or with only them slow."""

    workers: tuple[tuple[int, int], ...]
    removed_s: float
    added_s: float
    added_ratio: float | None


@dataclass(frozen=True, slots=True)
class ForwardBackward:
    """Correlation of forward and backward times within workers, and how much forwards vary (std / mean)."""

    correlation: float | None
    forward_cv: float | None


@dataclass(frozen=True, slots=True)
class TimingMs:
    """Milliseconds spent reading the trace and analysing it."""

    read: float
    analyze: float


@dataclass(frozen=True, slots=True, repr=False)
class Report:
    """What one job loses, to what, and how sure that is. Attributes are the keys of the JSON.

    Times are seconds; slowdowns are ratios to the ideal step time, launch slowdowns to the step time without launch
    delays; keys of maps are strings (`"3"`, `"forward_compute"`, a worker is `"dp_rank,stage"`).

    Example:
        >>> report = smon_rt.analysis.analyze("trace.parquet")  # doctest: +SKIP
        >>> print(report)  # doctest: +SKIP
        slowdown 1.97 (1.96–1.98): 49 % of 64 GPUs' time is lost, 22.9 s a step
        ...
    """

    path: str
    job: Job
    slowdown: Interval
    launch_slowdown: float
    waste_ratio: float
    utilization_ratio: float
    step_count: int
    mean_step_time_s: StepTime
    step_time_s_by_step: StepTimeByStep
    slowdown_by_step: ByStep
    slowdown_by_kind: dict[str, float]
    slowdown_by_stage: dict[str, float]
    slowdown_by_dp_rank: dict[str, float]
    slowdown_by_worker: dict[str, float]
    slowdown_by_worker_min: dict[str, float]
    slowdown_by_kind_by_step: dict[str, ByStep]
    slowdown_by_stage_by_step: dict[str, ByStep]
    slowdown_by_dp_rank_by_step: dict[str, ByStep]
    slowdown_by_worker_by_step: dict[str, ByStep]
    launch_slowdown_by_step: ByStep
    launch_slowdown_by_kind: dict[str, float]
    launch_slowdown_by_stage: dict[str, float]
    launch_slowdown_by_dp_rank: dict[str, float]
    launch_slowdown_by_kind_by_step: dict[str, ByStep]
    launch_slowdown_by_stage_by_step: dict[str, ByStep]
    launch_slowdown_by_dp_rank_by_step: dict[str, ByStep]
    m_w: float
    m_w_exact: float
    m_s: float
    m_w_detail: Contribution
    m_w_exact_detail: Contribution
    m_s_detail: Contribution
    worker_rank: dict[str, int]
    worker_host: dict[str, str]
    worker_median_s: dict[str, dict[str, float]]
    forward_backward: ForwardBackward
    communication: Communication | None
    causes: tuple[Cause, ...]
    verdict: Verdict
    advice: tuple[Advice, ...]
    fidelity: Fidelity
    timing_ms: TimingMs
    source: Source = field(compare=False)  # not in the JSON: what more can be asked of

    @classmethod
    def from_raw(cls, raw: RawResult, trace: Trace, options: ReportOptions | None = None) -> Report:
        """Builds the report from the engine's answer and the trace that it was asked about."""
        return _build(raw, trace, options or ReportOptions())

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON values: maps with string keys, lists, None for what is not a number."""
        return {
            each.name: _plain(getattr(self, each.name)) for each in dataclasses.fields(self) if each.name != "source"
        }

    def to_json(self, indent: int | None = 2) -> str:
        """The report as JSON text (docs/report.md, report_schema.json)."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    def what_if(self, fix: Sequence[str] = (), *, drop_slowest_dp: int = 0, scale_dp: float = 1.0) -> Answer:
        """What the step would take if all of this held at once (docs/what_if.md).

        Args:
            fix: `worker=DP,STAGE` and `stage=STAGE` compute no slower than their peers; `cause=NAME` goes away where
                the report found it; every op of `kind=NAME` takes what it takes without stragglers.
            drop_slowest_dp: that many dp ranks, the slowest by themselves, leave: nobody waits for them.
            scale_dp: so many times the dp ranks that remain, drawn from what was measured.

        The trace's ops are measured and replayed once more, a draw several times; the report keeps them in memory for
        that.

        Raises:
            QuestionError: a place outside the job, a cause that this trace cannot show, no replicas left.

        Example:
            >>> answer = report.what_if(["worker=0,0", "cause=gc"])  # doctest: +SKIP
            >>> answer.before_s_per_step, answer.after_s_per_step, answer.low, answer.high  # doctest: +SKIP
            (46.65, 23.24, 23.3, 23.5)
        """
        from smon_rt.analysis.what_if import answer

        return answer(self, fix, drop_slowest_dp, scale_dp)

    @property
    def lost_ratio(self) -> float:
        """The slowdown, or what the step is longer by the named cause where the slowdown does not count that.

        Work of the host that takes the same everywhere, and launch delays, are no part of the slowdown.
        """
        base_s, gain_s = self.mean_step_time_s.base, self.verdict.gain_s_per_step
        if self.verdict.cause not in BEYOND_SLOWDOWN or not 0 < gain_s < base_s:
            return self.slowdown.value
        return max(self.slowdown.value, base_s / (base_s - gain_s))

    def __str__(self) -> str:
        return self.verdict.text

    def __repr__(self) -> str:
        # All of it is some 80 KB: a prompt shows what a reader can take in.
        return f"<Report of {self.path}: {self.verdict.text.partition(chr(10))[0]}>"

    def _repr_html_(self) -> str:
        """The verdict and the worker heat map, for notebooks."""
        from smon_rt.report.notebook import notebook_fragment

        return notebook_fragment(self)


def worker_key(dp_rank: int, stage: int) -> str:
    """The key of a worker in the report's maps."""
    return f"{dp_rank},{stage}"


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: _plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return finite_or_none(value)
    return value


def _build(raw: RawResult, trace: Trace, options: ReportOptions) -> Report:
    steps = [str(step) for step in raw["steps"]]
    times = StepTime(*(fmean(raw["step_time_s"][name]) for name in ("base", "nodelay", "ideal")))
    recording = completed(trace.recording, raw)
    worker_size = trace.job.world_size // (raw["dp_size"] * raw["pp_size"])
    communication = None if recording is None else recording.communication
    found = (with_bandwidth(cause, communication) for cause in find_causes(raw, trace.job.cp_size))
    causes = tuple(located(cause, recording, worker_size) for cause in found)
    situation = _situation(raw, trace, times, causes, options, recording)
    by, launch_by = raw["slowdown_by"], raw["launch_slowdown_by"]
    by_by_step, launch_by_by_step = raw["slowdown_by_by_step"], raw["launch_slowdown_by_by_step"]
    slowdown = raw["slowdown"]["value"]
    return Report(
        path=os.fspath(trace.path),
        job=_job(trace),
        slowdown=Interval(slowdown, raw["slowdown"]["low"], raw["slowdown"]["high"]),
        launch_slowdown=raw["launch_slowdown"],
        waste_ratio=1 - 1 / slowdown if slowdown else math.nan,
        utilization_ratio=times.ideal / times.base if times.base else math.nan,
        step_count=len(steps),
        mean_step_time_s=times,
        step_time_s_by_step=StepTimeByStep(
            base=_by_step(steps, raw["step_time_s"]["base"]),
            nodelay=_by_step(steps, raw["step_time_s"]["nodelay"]),
            ideal=_by_step(steps, raw["step_time_s"]["ideal"]),
        ),
        slowdown_by_step=_by_step(steps, raw["slowdown_by_step"]),
        slowdown_by_kind=dict(by["kind"]),
        slowdown_by_stage=_by_number(by["stage"]),
        slowdown_by_dp_rank=_by_number(by["dp_rank"]),
        slowdown_by_worker=_of_recorded(_by_worker(raw["slowdown_by_worker"]), recording),
        slowdown_by_worker_min=_of_recorded(_by_worker(raw["slowdown_by_worker_min"]), recording),
        slowdown_by_kind_by_step=_each_by_step(steps, by_by_step["kind"]),
        slowdown_by_stage_by_step=_each_by_step(steps, _by_number(by_by_step["stage"])),
        slowdown_by_dp_rank_by_step=_each_by_step(steps, _by_number(by_by_step["dp_rank"])),
        slowdown_by_worker_by_step=_each_by_step(steps, _by_worker(raw["slowdown_by_worker_by_step"])),
        launch_slowdown_by_step=_by_step(steps, raw["launch_slowdown_by_step"]),
        launch_slowdown_by_kind=dict(launch_by["kind"]),
        launch_slowdown_by_stage=_by_number(launch_by["stage"]),
        launch_slowdown_by_dp_rank=_by_number(launch_by["dp_rank"]),
        launch_slowdown_by_kind_by_step=_each_by_step(steps, launch_by_by_step["kind"]),
        launch_slowdown_by_stage_by_step=_each_by_step(steps, _by_number(launch_by_by_step["stage"])),
        launch_slowdown_by_dp_rank_by_step=_each_by_step(steps, _by_number(launch_by_by_step["dp_rank"])),
        m_w=raw["m_w"]["ratio"],
        m_w_exact=raw["m_w_exact"]["ratio"],
        m_s=raw["m_s"]["ratio"],
        m_w_detail=_contribution(raw["m_w"]),
        m_w_exact_detail=_contribution(raw["m_w_exact"]),
        m_s_detail=_contribution(raw["m_s"]),
        worker_rank=_by_worker(raw["worker_rank"]),
        worker_host=_hosts(recording),
        worker_median_s={kind: _by_worker(medians) for kind, medians in raw["worker_median_s"].items()},
        forward_backward=ForwardBackward(
            correlation=finite_or_none(raw["forward_backward"]["correlation"]),
            forward_cv=finite_or_none(raw["forward_backward"]["forward_cv"]),
        ),
        communication=communication,
        causes=causes,
        verdict=draw_verdict(situation),
        advice=(),
        fidelity=fidelity_of(raw, recording),
        timing_ms=TimingMs(read=float(trace.read_ms), analyze=float(raw["timing_ms"]["analyze"])),
        source=Source(trace, options, raw["dp_size"]),
    )


def _situation(
    raw: RawResult,
    trace: Trace,
    times: StepTime,
    causes: Sequence[Cause],
    options: ReportOptions,
    recording: Recording | None,
) -> Situation:
    job = trace.job
    # Where the context-parallel ranks are numbered within dp_rank, a worker's members are its tp ranks alone.
    has_cp_members = job.cp_size > 1 and raw["dp_size"] == job.dp_size
    return Situation(
        world=job.world_size,
        dp=raw["dp_size"],
        pp=raw["pp_size"],
        members=job.world_size // (raw["dp_size"] * raw["pp_size"]),
        members_are="tp" if not has_cp_members else "cp" if job.tp_size == 1 else "tp × cp",
        step_count=len(raw["steps"]),
        steps_chosen=options.steps_chosen,
        base_s=times.base,
        nodelay_s=times.nodelay,
        ideal_s=times.ideal,
        slowdown=raw["slowdown"]["value"],
        slowdown_low=raw["slowdown"]["low"],
        slowdown_high=raw["slowdown"]["high"],
        m_w=raw["m_w"]["ratio"],
        m_w_exact=raw["m_w_exact"]["ratio"],
        m_s=raw["m_s"]["ratio"],
        simulation_error_mean=raw["fidelity"]["simulation_error_mean"],
        simulation_error_worst=raw["fidelity"]["simulation_error_worst"],
        unexplained_error_mean=raw["fidelity"].get("unexplained_error_mean"),
        unexplained_error_worst=raw["fidelity"].get("unexplained_error_worst"),
        early_start_count=raw["fidelity"]["early_starts"]["count"],
        early_start_worst_s=raw["fidelity"]["early_starts"]["worst_s"],
        causes=causes,
        gpu_hour_price=options.gpu_hour_price,
        currency=options.currency,
        recording=recording,
        has_device_times=job.has_device_times,
        machines=Machines(_by_worker(raw["worker_rank"]), _hosts(recording)),
        stage_layers=options.layers or job.layers,
        wait_for_missing_s=raw.get("wait_for_missing_s"),
    )


def _job(trace: Trace) -> Job:
    sizes = {name: getattr(trace.job, f"{name}_size") for name in ("dp", "pp", "tp", "cp", "vpp", "world")}
    return Job(trace.job.name, **sizes)


def _contribution(raw: RawContribution) -> Contribution:
    return Contribution(
        workers=tuple((dp_rank, stage) for dp_rank, stage in raw["workers"]),
        removed_s=raw["removed_s"],
        added_s=raw["added_s"],
        added_ratio=finite_or_none(raw["added_ratio"]),
    )


def _hosts(recording: Recording | None) -> dict[str, str]:
    """The host of each worker's lowest rank, where the trace says it."""
    workers = {} if recording is None else recording.members
    lowest = {place: min(members, key=lambda member: member.rank) for place, members in workers.items()}
    return {worker_key(*place): member.host for place, member in sorted(lowest.items()) if member.host}


def _by_step(steps: Sequence[str], values: Sequence[float]) -> ByStep:
    return dict(zip(steps, values, strict=True))


def _of_recorded(by_worker: dict[str, float], recording: Recording | None) -> dict[str, float]:
    """Not a number for a worker of which no rank was recorded: what stands in for it says nothing of it."""
    if recording is None:
        return by_worker
    recorded = {worker_key(*worker) for worker in recording.members}
    return {key: value if key in recorded else math.nan for key, value in by_worker.items()}


def _each_by_step(steps: Sequence[str], groups: Mapping[str, Sequence[float]]) -> dict[str, ByStep]:
    return {name: _by_step(steps, values) for name, values in groups.items()}


def _by_number(values: Mapping[str, Any]) -> dict[str, Any]:
    """The map in the order of its numbers, since "10" sorts before "2"."""
    return {key: values[key] for key in sorted(values, key=int)}


def _by_worker(table: Sequence[Sequence[Any]]) -> dict[str, Any]:
    return {worker_key(dp_rank, stage): value for dp_rank, row in enumerate(table) for stage, value in enumerate(row)}
