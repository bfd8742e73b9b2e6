"""The jobs that the verdict is graded on: what is planted, where and how much is drawn from each job's seed.

So another set of seeds is another set of jobs, of the same kinds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from smon_rt.synth import JobSpec, LongSequences, Pauses, Plant, SlowGroup, SlowLaunch, SlowLink, SlowMember
from smon_rt.synth.plants import AnyPlant

Random = np.random.Generator
#: Draws a plant for a job of this layout.
Recipe = Callable[[Random, JobSpec], AnyPlant]

#: Keeps the seeds of a job's plants apart from those of its times.
_RECIPE_STREAM = 77
_SEEDS_OF_A_SET = 1000


@dataclass(frozen=True)
class AccuracyJob:
    """One job: how it is called in the table, and what it is. `group` is single, mixed, healthy, or missing: some ranks
    were not recorded, whose causes no report can name.
    """

    name: str
    group: str
    spec: JobSpec
    smoke: bool = False


def _worker(random: Random, spec: JobSpec) -> AnyPlant:
    dp_rank, stage = int(random.integers(spec.dp)), int(random.integers(spec.pp))
    return Plant(stage, round(float(random.uniform(1.25, 2.0)), 2), dp_rank)


def _stage(random: Random, spec: JobSpec) -> AnyPlant:
    return Plant(int(random.integers(spec.pp)), round(float(random.uniform(1.2, 1.6)), 2))


def _last_stage(random: Random, spec: JobSpec) -> AnyPlant:
    return Plant(spec.pp - 1, round(float(random.uniform(1.2, 1.6)), 2))


def _sequences(random: Random, spec: JobSpec) -> AnyPlant:
    return LongSequences(round(float(random.uniform(0.8, 1.5)), 2))


def _gc(random: Random, spec: JobSpec) -> AnyPlant:
    return Pauses("gc", float(random.integers(60, 150)), round(float(random.uniform(0.1, 0.4)), 2))


def _gc_of_one(random: Random, spec: JobSpec) -> AnyPlant:
    where = {"dp_rank": int(random.integers(spec.dp)), "stage": int(random.integers(spec.pp))}
    return Pauses("gc", float(random.integers(80, 150)), round(float(random.uniform(0.5, 1.0)), 2), **where)


def _planned_gc(random: Random, spec: JobSpec) -> AnyPlant:
    return Pauses("gc", float(random.integers(100, 250)), every_steps=int(random.integers(2, 5)))


def _data(random: Random, spec: JobSpec) -> AnyPlant:
    where = {"dp_rank": int(random.integers(spec.dp)), "stage": 0}
    return Pauses("data_loading", float(random.integers(60, 200)), round(float(random.uniform(0.4, 1.0)), 2), **where)


def _data_of_all(random: Random, spec: JobSpec) -> AnyPlant:
    return Pauses("data_loading", float(random.integers(60, 150)), round(float(random.uniform(0.1, 0.3)), 2))


def _link(random: Random, spec: JobSpec) -> AnyPlant:
    dp_rank = int(random.integers(spec.dp))
    return SlowLink(int(random.integers(spec.pp - 1)), round(float(random.uniform(20, 40)), 1), dp_rank)


def _links(random: Random, spec: JobSpec) -> AnyPlant:
    return SlowLink(int(random.integers(spec.pp - 1)), round(float(random.uniform(15, 40)), 1))


def _group(random: Random, spec: JobSpec) -> AnyPlant:
    return SlowGroup(int(random.integers(spec.pp)), round(float(random.uniform(3, 8)), 1))


def _first_group(random: Random, spec: JobSpec) -> AnyPlant:
    return SlowGroup(0, round(float(random.uniform(5, 8)), 1))


def _launch(random: Random, spec: JobSpec) -> AnyPlant:
    dp_rank, stage = int(random.integers(spec.dp)), int(random.integers(spec.pp))
    return SlowLaunch(round(float(random.uniform(3, 8)), 1), dp_rank, stage)


def _launch_of_all(random: Random, spec: JobSpec) -> AnyPlant:
    return SlowLaunch(round(float(random.uniform(1, 3)), 1))


def _member(random: Random, spec: JobSpec) -> AnyPlant:
    dp_rank, stage, tp_rank = (int(random.integers(size)) for size in (spec.dp, spec.pp, spec.tp))
    return SlowMember(dp_rank, stage, tp_rank, round(float(random.uniform(1.3, 2.0)), 2))


_PLAIN = JobSpec(dp=4, pp=4, microbatches=8, steps=20, noise=0.02, comm_noise=0.05)
_DEEP = dataclasses.replace(_PLAIN, dp=3, pp=6, microbatches=12, steps=12)
_WIDE = dataclasses.replace(_PLAIN, dp=16, pp=2, microbatches=6, steps=16)
_DP_ONLY = dataclasses.replace(_PLAIN, dp=8, pp=1, microbatches=6, steps=24)
_CHUNKED = dataclasses.replace(_PLAIN, pp=2, vpp=2, overlap=True)
_NOISY = dataclasses.replace(_PLAIN, noise=0.05, tail_ratio=0.005, steps=24)
#: As recorded, with everything that a recording may have against it.
_HOSTS: dict[str, Any] = {"hosts": 4, "clock_offset_ms": 200.0, "clock_drift_ppm": 20.0}
_CLOCKS = dataclasses.replace(_PLAIN, **_HOSTS)
_LOSSY = dataclasses.replace(_PLAIN, drop_ratio=0.005)
_MISSING = dataclasses.replace(_PLAIN, missing_ranks=(5,))
_UNEVEN = dataclasses.replace(_PLAIN, fewer_microbatches=2)
_TP = dataclasses.replace(_PLAIN, tp=2, steps=12)
#: Jobs whose tp members meet in each compute.
_MEMBERS = dataclasses.replace(_TP, tp_collectives=4, noise=0.03)
_MORE_MEMBERS = dataclasses.replace(_MEMBERS, dp=2, pp=2, tp=4)


def _missing(*ranks: int, **changed: Any) -> JobSpec:
    return dataclasses.replace(_PLAIN, missing_ranks=ranks, **changed)


#: Cause → recipes, each on some layouts.
_SINGLE: dict[str, list[tuple[Recipe, list[tuple[str, JobSpec]]]]] = {
    "worker": [
        (
            _worker,
            [
                *(("plain", _PLAIN), ("deep", _DEEP), ("wide", _WIDE), ("dp only", _DP_ONLY), ("chunked", _CHUNKED)),
                *(("clocks", _CLOCKS), ("lossy", _LOSSY), ("noisy", _NOISY), ("uneven", _UNEVEN), ("tp", _TP)),
            ],
        )
    ],
    "stage": [
        (_stage, [("plain", _PLAIN), ("deep", _DEEP), ("clocks", _CLOCKS), ("missing rank", _MISSING)]),
        (_last_stage, [("plain, last", _PLAIN), ("chunked, last", _CHUNKED), ("wide, last", _WIDE)]),
    ],
    "sequence_length": [
        (
            _sequences,
            [
                *(("plain", _PLAIN), ("deep", _DEEP), ("dp only", _DP_ONLY), ("clocks", _CLOCKS), ("uneven", _UNEVEN)),
                ("wide", _WIDE),
            ],
        )
    ],
    "gc": [
        (_gc, [("plain", _PLAIN), ("clocks", _CLOCKS), ("wide", _WIDE), ("dp only", _DP_ONLY)]),
        (_gc_of_one, [("one worker", _PLAIN)]),
        (_planned_gc, [("planned", _PLAIN), ("planned, deep", _DEEP)]),
    ],
    "data_loading": [
        (_data, [("plain", _PLAIN), ("deep", _DEEP), ("clocks", _CLOCKS), ("dp only", _DP_ONLY)]),
        (_data_of_all, [("all", _PLAIN), ("all, wide", _WIDE)]),
    ],
    "pp_communication": [
        # A link that all pipelines have must have others beside it to be slower than: pp is more than 2.
        (_link, [("one pipeline", _PLAIN), ("one pipeline, deep", _DEEP), ("one pipeline, wide", _WIDE)]),
        (_links, [("all", _PLAIN), ("all, deep", _DEEP), ("all, clocks", _CLOCKS)]),
    ],
    "dp_communication": [
        (_group, [("plain", _PLAIN), ("wide", _WIDE), ("clocks", _CLOCKS), ("tp", _TP)]),
        # Those of a stage in the middle of a deep pipeline are hidden behind the computes of others.
        (_first_group, [("first stage, deep", _DEEP)]),
    ],
    "host_launch_delay": [
        (_launch, [("one worker", _PLAIN), ("one worker, deep", _DEEP), ("one worker, clocks", _CLOCKS)]),
        (_launch_of_all, [("all", _PLAIN), ("all, wide", _WIDE)]),
    ],
}

_MIXED: list[tuple[str, JobSpec, tuple[Recipe, ...]]] = [
    ("worker, stage", _PLAIN, (_worker, _last_stage)),
    ("worker, sequences", _PLAIN, (_worker, _sequences)),
    ("worker, gc", _PLAIN, (_worker, _gc)),
    ("worker, data", _PLAIN, (_worker, _data)),
    ("worker, link", _CLOCKS, (_worker, _links)),
    ("worker, launch", _PLAIN, (_worker, _launch_of_all)),
    ("stage, sequences", _PLAIN, (_stage, _sequences)),
    ("stage, gc", _CLOCKS, (_last_stage, _gc)),
    ("stage, dp group", _PLAIN, (_stage, _group)),
    ("sequences, gc", _PLAIN, (_sequences, _gc)),
    ("sequences, link", _DEEP, (_sequences, _links)),
    ("gc, data", _PLAIN, (_gc, _data_of_all)),
    ("link, dp group", _PLAIN, (_links, _group)),
    ("worker, sequences, gc", _PLAIN, (_worker, _sequences, _gc)),
    ("stage, data, link", _PLAIN, (_last_stage, _data, _links)),
]

#: Came later than the others, and have the seeds after theirs: group, name, job, what is planted in it.
_OF_MEMBERS: list[tuple[str, str, JobSpec, tuple[Recipe, ...]]] = [
    ("single", "tensor_parallel_member: plain", _MEMBERS, (_member,)),
    ("single", "tensor_parallel_member: tp 4", _MORE_MEMBERS, (_member,)),
    ("single", "tensor_parallel_member: one worker", dataclasses.replace(_MORE_MEMBERS, dp=1, pp=1), (_member,)),
    ("single", "tensor_parallel_member: one stage", dataclasses.replace(_MEMBERS, dp=8, pp=1), (_member,)),
    ("single", "tensor_parallel_member: uneven", dataclasses.replace(_MEMBERS, fewer_microbatches=2), (_member,)),
    ("single", "tensor_parallel_member: lossy", dataclasses.replace(_MEMBERS, drop_ratio=0.005), (_member,)),
    ("single", "tensor_parallel_member: clocks", dataclasses.replace(_MEMBERS, **_HOSTS), (_member,)),
    ("single", "worker: tp, all members", _MEMBERS, (_worker,)),
    ("single", "stage: tp, all members", _MEMBERS, (_last_stage,)),
    ("mixed", "mixed: member, gc", _MEMBERS, (_member, _gc)),
    ("mixed", "mixed: member, sequences", _MEMBERS, (_member, _sequences)),
    ("mixed", "mixed: member, stage", _MORE_MEMBERS, (_member, _stage)),
    ("mixed", "mixed: member, launch", _MEMBERS, (_member, _launch_of_all)),
    ("healthy", "healthy: tp members, 5 %", dataclasses.replace(_MEMBERS, noise=0.05), ()),
    ("healthy", "healthy: tp 4, 10 %", dataclasses.replace(_MORE_MEMBERS, noise=0.1), ()),
    ("healthy", "healthy: tp members, heavy tail", dataclasses.replace(_MEMBERS, tail_ratio=0.005), ()),
]

_HEALTHY: list[tuple[str, JobSpec]] = [
    ("no noise", dataclasses.replace(_PLAIN, noise=0.0, comm_noise=0.0)),
    ("plain", _PLAIN),
    ("5 %", dataclasses.replace(_PLAIN, noise=0.05)),
    ("5 %, deep", dataclasses.replace(_DEEP, noise=0.05)),
    ("5 %, dp 64", dataclasses.replace(_PLAIN, dp=64, pp=2, microbatches=4, steps=12, noise=0.05)),
    ("5 %, dp 64, one stage", dataclasses.replace(_PLAIN, dp=64, pp=1, microbatches=4, steps=16, noise=0.05)),
    ("heavy tail", dataclasses.replace(_PLAIN, noise=0.03, tail_ratio=0.005)),
    ("heavy tail, wide", dataclasses.replace(_WIDE, noise=0.03, tail_ratio=0.003)),
    ("5 %, clocks", dataclasses.replace(_CLOCKS, noise=0.05)),
    ("uneven, lossy", dataclasses.replace(_UNEVEN, noise=0.03, drop_ratio=0.002)),
]

#: Ranks are numbered by stage first: 0 to 3 are the first stage of four dp ranks, and the first of two hosts has 8.
_OTHER_HOST: dict[str, Any] = {"hosts": 2, "missing_ranks": tuple(range(8, 16))}
_ONE_RANK: dict[str, Any] = {"missing_ranks": tuple(range(1, 16))}
_WORKER_1_1 = Plant(1, 1.6, dp_rank=1)

#: Which ranks were not recorded, and what is planted among those that were.
_MISSING_RANKS: list[tuple[str, JobSpec]] = [
    *((f"healthy, 5 %, rank {rank}", _missing(rank, noise=0.05)) for rank in (1, 6, 14)),
    ("healthy, 5 %, first stage", _missing(0, 1, 2, 3, noise=0.05)),
    ("healthy, 5 %, last stage", _missing(12, 13, 14, 15, noise=0.05)),
    ("healthy, 5 %, a dp rank", _missing(0, 4, 8, 12, noise=0.05)),
    ("healthy, 5 %, one rank of all", dataclasses.replace(_PLAIN, noise=0.05, **_ONE_RANK)),
    ("healthy, other host", dataclasses.replace(_PLAIN, **_OTHER_HOST)),
    ("healthy, other host, one stage", dataclasses.replace(_DP_ONLY, dp=16, **_OTHER_HOST)),
    *((f"worker, rank {rank}", _missing(rank, plants=(_WORKER_1_1,))) for rank in (1, 9, 13, 15)),
    ("worker, other host", dataclasses.replace(_PLAIN, plants=(_WORKER_1_1,), **_OTHER_HOST)),
    ("stage, rank 1", _missing(1, plants=(Plant(2, 1.4),))),
    ("link, rank 12", _missing(12, plants=(SlowLink(1, 30.0, 1),))),
    ("dp group, rank 1", _missing(1, plants=(SlowGroup(0, 6.0),))),
    ("data, rank 3", _missing(3, plants=(Pauses("data_loading", 100.0, 0.7, dp_rank=1, stage=0),))),
    ("launch, rank 6", _missing(6, plants=(SlowLaunch(5.0, 1, 1),))),
]

#: One of each kind of fault, small enough for every run of the tests.
_SMOKE = {
    *("worker: plain", "worker: clocks", "stage: plain, last", "stage: missing rank", "sequence_length: plain"),
    *("gc: dp only", "host_launch_delay: one worker", "mixed: worker, sequences", "tensor_parallel_member: plain"),
    *("healthy: plain", "healthy: 5 %", "missing ranks: healthy, other host", "missing ranks: worker, rank 1"),
}


def accuracy_jobs(seeds_from: int) -> list[AccuracyJob]:
    """All jobs, with seeds that follow each other; the set of another offset has no seed in common with this one."""
    jobs = []
    for seed, (group, name, spec, recipes) in enumerate(_recipes(), seeds_from * _SEEDS_OF_A_SET):
        random = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(_RECIPE_STREAM,))))
        plants = spec.plants + tuple(recipe(random, spec) for recipe in recipes)
        jobs.append(AccuracyJob(name, group, dataclasses.replace(spec, plants=plants, seed=seed), name in _SMOKE))
    return jobs


def _recipes() -> Iterator[tuple[str, str, JobSpec, tuple[Recipe, ...]]]:
    for cause, recipes in _SINGLE.items():
        for recipe, layouts in recipes:
            for layout, spec in layouts:
                yield "single", f"{cause}: {layout}", spec, (recipe,)
    for name, spec, mixture in _MIXED:
        yield "mixed", f"mixed: {name}", spec, mixture
    for name, spec in _HEALTHY:
        yield "healthy", f"healthy: {name}", spec, ()
    for name, spec in _MISSING_RANKS:
        yield "missing", f"missing ranks: {name}", spec, ()
    yield from _OF_MEMBERS
