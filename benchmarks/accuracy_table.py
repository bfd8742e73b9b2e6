"""docs/accuracy.md, from the grades of all jobs."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from accuracy import JobGrade, PlantGrade


def document(grades: Sequence[JobGrade], seeds_from: int, took_s: float) -> str:
    """The whole page."""
    return "\n".join(
        [
            *_head(grades, seeds_from, took_s),
            *_goals(grades),
            *_by_cause(grades),
            *_misses(grades),
            *_single_and_mixed(grades),
            *_healthy(grades),
            *_missing_ranks(grades),
        ]
    )


def _head(grades: Sequence[JobGrade], seeds_from: int, took_s: float) -> list[str]:
    counts = {group: len(_of(grades, group)) for group in ("single", "mixed", "healthy", "missing")}
    return [
        "# Accuracy of the verdict",
        "",
        f"Made by `make accuracy` on {datetime.date.today().isoformat()}: seeds {seeds_from}, {len(grades)} jobs "
        f"({counts['single']} with one planted cause, {counts['mixed']} with several, {counts['healthy']} healthy, "
        f"{counts['missing']} with ranks that were not recorded), {took_s:.0f} s.",
        "",
        "The truth of a gain is the mean step time of the job minus that of the same random draws without that plant,",
        "by the generator's own simulator, which shares nothing with the engine. A cause *counts* when that is at",
        "least 5 % of the fault-free step. It is *named* when the report gives it a gain of at least 3 % of the step",
        "whose 95 % interval stays above 1 %; a worker, its member or a stage must be the right one. The gain is",
        "*right* within 3 % of the truth or 0.5 % of the fault-free step, whichever is more. Without long sequences",
        "each microbatch takes what the median one does. `make accuracy SEEDS_FROM=N` grades other jobs",
        "of the same kinds: other draws, places and sizes; it prints the page and writes no file.",
        "",
    ]


def _goals(grades: Sequence[JobGrade]) -> list[str]:
    single = [grade for grade in _of(grades, "single") if _counting([grade])]
    counting = _counting(_of(grades, "single"))
    mixed = _counting(_of(grades, "mixed"))
    healthy, missing = _of(grades, "healthy"), _of(grades, "missing")
    rows = [
        ("every single cause that counts is named first", [grade.is_first_right for grade in single]),
        ("its gain is right", [plant.is_gain_right for plant in counting]),
        ("in mixed jobs each cause that counts is named", [plant.is_named for plant in mixed]),
        ("nothing is named in healthy jobs", [_names_nothing(grade) for grade in healthy]),
        ("nor in those with missing ranks", [_names_nothing(grade) for grade in missing if not grade.plants]),
        ("which hide no cause of a recorded rank", [grade.is_right for grade in missing if grade.plants]),
        ("nor change its gain", [plant.is_gain_right for plant in _counting(missing)]),
    ]
    lines = ["## Goals", "", "| goal | measured | met |", "| --- | --- | --- |"]
    for goal, found in rows:
        lines.append(f"| {goal} | {sum(found)} of {len(found)} | {'yes' if all(found) else '**no**'} |")
    return [*lines, ""]


def _by_cause(grades: Sequence[JobGrade]) -> list[str]:
    """Recall over plants that count; precision over what is named anywhere, except plants that cost less."""
    counting, every = _counting(grades), [plant for grade in grades for plant in grade.plants]
    wrong = [cause for grade in grades for cause in grade.wrong]
    lines = [
        "## By cause",
        "",
        "Over all jobs. Precision: of the times the cause is named, how often it was planted (there). Recall: of the",
        "plants that count, how many are named. Error: of the gain, median and worst over those. Place: how many of",
        "the named ones come with exactly their dp rank and stage, a link with both its ends; what is everywhere has",
        "none.",
        "",
        "| cause | plants that count | recall | precision | gain right | error, median | worst | place right |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for cause in dict.fromkeys([plant.cause for plant in every] + wrong):
        own = [plant for plant in counting if plant.cause == cause]
        named = sum(plant.is_named for plant in every if plant.cause == cause)
        places = [plant.is_place_right for plant in own if plant.is_place_right is not None]
        errors = [abs(plant.error_ratio) for plant in own if plant.error_ratio is not None]
        right = f"{sum(plant.is_gain_right for plant in own)} of {len(own)}"
        spread = f"{100 * median(errors):.1f} % | {100 * max(errors):.1f} %" if errors else "– | –"
        lines.append(
            f"| {cause} | {len(own)} | {_share(sum(plant.is_named for plant in own), len(own))} "
            f"| {_share(named, named + wrong.count(cause))} | {right} | {spread} "
            f"| {f'{sum(places)} of {len(places)}' if places else '–'} |"
        )
    return [*lines, ""]


def _misses(grades: Sequence[JobGrade]) -> list[str]:
    """Exactly where a goal is not met."""
    lines = []
    for grade in grades:
        words = []
        costly = [plant for plant in grade.plants if plant.counts]
        if not grade.is_first_right:
            words.append(f"{grade.first} comes first")
        words += [f"{plant.text} ({_percent(plant.cost_ratio)}) is not named" for plant in costly if not plant.is_named]
        words += [
            f"{plant.text} is said to give back {_ms(plant.said_s)}, truth {_ms(plant.gain_s)}"
            for plant in costly
            if plant.is_named and not plant.is_gain_right and grade.job.group == "single"
        ]
        words += [f"{cause} is named and was not planted" for cause in grade.wrong]
        if words:
            lines.append(f"- {grade.job.name}: {'; '.join(words)}.")
    return ["## Where the goals are not met", "", *(lines or ["Nowhere."]), ""]


def _single_and_mixed(grades: Sequence[JobGrade]) -> list[str]:
    lines = [
        "## Jobs with planted causes",
        "",
        "| job | dp × pp × vpp × tp | fault-free step | planted | costs | gain said | error | first | named besides |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for grade in grades:
        spec = grade.job.spec
        besides = ", ".join(cause for cause in grade.named if cause != grade.first) or "–"
        for index, plant in enumerate(grade.plants):
            error = "–" if plant.error_ratio is None else f"{100 * plant.error_ratio:+.1f} %"
            job = f"{grade.job.name} | {spec.dp} × {spec.pp} × {spec.vpp} × {spec.tp} | {_ms(grade.fault_free_s)}"
            last = f"{grade.first} | {besides}"
            lines.append(
                f"| {'| |' if index else job} | {plant.text} | {_ms(plant.gain_s)}, {_percent(plant.cost_ratio)} "
                f"| {_ms(plant.said_s)} | {error} | {'|' if index else last} |"
            )
    return [*lines, ""]


def _healthy(grades: Sequence[JobGrade]) -> list[str]:
    lines = [
        "## Healthy jobs",
        "",
        "| job | dp × pp | noise | slowdown said | named |",
        "| --- | --- | --- | --- | --- |",
    ]
    for grade in _of(grades, "healthy"):
        spec = grade.job.spec
        noise = f"{100 * spec.noise:.0f} %" + (
            f", {100 * spec.tail_ratio:g} % in a heavy tail" if spec.tail_ratio else ""
        )
        named = ", ".join(grade.named or ([grade.first] if grade.first != "none" else [])) or "nothing"
        lines.append(f"| {grade.job.name} | {spec.dp} × {spec.pp} | {noise} | {grade.slowdown:.3f} | {named} |")
    return [*lines, ""]


def _missing_ranks(grades: Sequence[JobGrade]) -> list[str]:
    lines = [
        "## Jobs with ranks that were not recorded",
        "",
        "| job | missing | planted | costs | gain said | slowdown said | named |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for grade in _of(grades, "missing"):
        count = f"{len(grade.job.spec.missing_ranks)} of {grade.job.spec.world_size}"
        plant = grade.plants[0] if grade.plants else None
        planted = "nothing | – | –" if plant is None else f"{plant.text} | {_ms(plant.gain_s)} | {_ms(plant.said_s)}"
        named = ", ".join(grade.named) or "nothing"
        lines.append(f"| {grade.job.name} | {count} | {planted} | {grade.slowdown:.3f} | {named} |")
    return [*lines, ""]


def _names_nothing(grade: JobGrade) -> bool:
    return not grade.named and grade.first == "none"


def _of(grades: Iterable[JobGrade], group: str) -> list[JobGrade]:
    return [grade for grade in grades if grade.job.group == group]


def _counting(grades: Iterable[JobGrade]) -> list[PlantGrade]:
    return [plant for grade in grades for plant in grade.plants if plant.counts]


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} % ({part} of {whole})" if whole else "–"


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.1f} %"


def _ms(seconds: float | None) -> str:
    return "–" if seconds is None else f"{1000 * seconds:.1f} ms"
