"""examples/megatron_faults.py: what is planted in real Megatron runs is what the verdict names, at its place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from smon_rt.analysis import analyze
from smon_rt.analysis.verdict import Verdict
from tests.python.megatron_jobs import Case, needs_megatron, run_cases

pytestmark = [pytest.mark.slow, needs_megatron]
#: Of a layer's forward; longer where nothing is planted, so that what else a stage does (the loss) is little beside it.
LAYER_MS, HEALTHY_LAYER_MS = 10.0, 40.0
Place = Mapping[str, int | None]
WHOLE_JOB: Place = {"rank": None, "dp_rank": None, "stage": None}
#: Fault → layout, cause, place. Ranks of a stage are neighbours: rank 2 is dp rank 0 of stage 1.
FAULTS: dict[str, tuple[dict[str, Any], str, Place]] = {
    "slow_rank": (
        {"pp": 2, "overlap_grad_reduce": True, "overlap_param_gather": True},
        "worker",
        {"rank": 2, "dp_rank": 0, "stage": 1},
    ),
    "slow_stage": ({"pp": 2, "vpp": 2, "overlap_p2p": True}, "stage", {"rank": None, "stage": 1}),
    "long_sequences": ({"pp": 2}, "sequence_length", WHOLE_JOB),
    "slow_tp_rank": ({"pp": 2, "tp": 2}, "tensor_parallel_member", {"rank": 2, "dp_rank": 0, "stage": 1}),
    "none": ({"pp": 2, "steps": 9}, "none", WHOLE_JOB),
}


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Verdict]:
    """Of a short run with each fault, all in one launch."""
    return verdicts_of(list(FAULTS), tmp_path_factory.mktemp("faults"))


def verdicts_of(faults: list[str], folder: Path) -> dict[str, Verdict]:
    cases = [
        Case(
            fault,
            {"steps": 16, "microbatches": 4} | FAULTS[fault][0],
            recording={"sample_ratio": 1.0, "strict": True},
            before=f"""
                import functools, megatron_faults
                plant = functools.partial(megatron_faults.plant, {fault!r}, {layer_ms(fault)})
            """,
        )
        for fault in faults
    ]
    return {name: analyze(result.folder).verdict for name, result in run_cases(cases, folder).items()}


def layer_ms(fault: str) -> float:
    return HEALTHY_LAYER_MS if fault == "none" else LAYER_MS


@pytest.mark.parametrize("fault", FAULTS)
def test_the_verdict_names_what_was_planted(verdicts: dict[str, Verdict], fault: str, tmp_path: Path) -> None:
    _, cause, where = FAULTS[fault]
    verdict = verdicts[fault]
    if (verdict.cause, place(verdict, where)) != (cause, where):  # drowned by what runs beside it, perhaps: alone then
        verdict = verdicts_of([fault], tmp_path)[fault]
    assert (verdict.cause, place(verdict, where)) == (cause, where), verdict.text
    assert "replay error" in verdict.text


def place(verdict: Verdict, fields: Iterable[str]) -> dict[str, int | None]:
    return {name: getattr(verdict.where, name) for name in fields}
