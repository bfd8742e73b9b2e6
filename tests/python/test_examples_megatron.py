"""examples/megatron_pretrain.py from the command line: by one line, and without one under smon_rt.run."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.python.example_jobs import EXAMPLES, counts, ids, run, traces_in
from tests.python.megatron_jobs import LAYOUTS, CaseResult, layouts, needs_megatron

__all__ = ["layouts"]  # the fixture
pytestmark = [pytest.mark.slow, needs_megatron]
STEPS, MICROBATCHES = 3, 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Traces of two jobs of two stages: one_line and no_line. Each rank imports Megatron itself, after smon_rt."""
    folder = tmp_path_factory.mktemp("megatron_example")
    arguments = ["--pp=2", f"--steps={STEPS}", f"--microbatches={MICROBATCHES}"]
    job = {"script": str(EXAMPLES / "megatron_pretrain.py"), "ranks": 2}
    jobs = [
        job | {"arguments": [*arguments, f"--dir={folder / 'one_line'}"]},
        job | {"arguments": [*arguments, "--no-smon"], "run": str(folder / "no_line")},
    ]
    run([sys.executable, str(Path(__file__).with_name("forked_ranks.py")), json.dumps(jobs)])
    return folder


@pytest.mark.parametrize("name", ["one_line", "no_line"])
def test_each_step_has_the_schedule_s_computes(folder: Path, name: str) -> None:
    for trace in traces_in(folder / name):
        layout = trace.identity.layout
        assert (layout.pp_size, layout.stage, layout.dp_size, layout.tp_size) == (2, trace.rank, 1, 1)
        assert (layout.schedule, layout.microbatch_count) == ("1f1b", MICROBATCHES)
        for step in range(STEPS):
            for kind in ("forward_compute", "backward_compute"):
                assert ids(trace, kind, step) == [(number, 0) for number in range(MICROBATCHES)]


def test_without_a_line_the_same_is_recorded(folder: Path) -> None:
    one_line, no_line = (traces_in(folder / name) for name in ("one_line", "no_line"))
    for expected, found in zip(one_line, no_line, strict=True):
        for step in range(1, STEPS):  # groups are made before the one line, and after a job's own start
            assert counts(found, step) == counts(expected, step)
        assert [hook.name for hook in found.identity.hooks if hook.reason] == [
            hook.name for hook in expected.identity.hooks if hook.reason
        ]


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_trains(layouts: dict[str, CaseResult], name: str) -> None:
    reported = [losses for losses in layouts[f"plain {name}"].losses if losses]
    assert len(reported) == 4 // LAYOUTS[name]["pp"]  # ranks of the last stage
    assert all(losses == reported[0] for losses in reported)
    assert reported[0] == sorted(reported[0], reverse=True)
    assert reported[0][-1] < reported[0][0] - 0.3
