"""Runs layouts of examples/megatron_pretrain.py: one launch of four real processes trains many, one after the other.

Importing Megatron and torch takes longer than training: one process does it, and the ranks are forks of that.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from smon_rt.trace import RankTrace
from tests.python.example_jobs import EXAMPLES, ROOT, environment, traces_in

HAS_MEGATRON = all(importlib.util.find_spec(name) is not None for name in ("torch", "megatron"))
#: For each test module: `pytestmark = needs_megatron`.
needs_megatron = pytest.mark.skipif(not HAS_MEGATRON, reason="Megatron is not installed: pip install megatron-core")

DEADLINE_S = 300.0
#: `before` of a case: how many reductions of gradients, or gathers of parameters, this rank needs.
_COUNT_BUCKET_GROUPS = "plant = lambda chunks: answer.update(bucket_groups=sum(len(c.bucket_groups) for c in chunks))"
STEPS, MICROBATCHES = 5, 4
#: What each rank of a recorded case records: all of every step.
EVERYTHING = {"sample_ratio": 1.0, "warmup_steps": 0, "strict": True}


@dataclass(frozen=True)
class Case:
    """One layout to train."""

    name: str
    settings: Mapping[str, Any]
    """Fields of `Settings` of the example."""
    recording: Mapping[str, Any] | None = None
    """Options of `smon_rt.start`; not recorded if None."""
    before: str = ""
    """Code that each rank runs ahead of training; it finds the names of `megatron_worker.names_of`."""
    after: str = ""


@dataclass(frozen=True)
class CaseResult:
    """What became of a case; lists are by rank."""

    case: Case
    folder: Path
    """Of the traces."""
    losses: list[list[float]]
    """Of each step; empty but on ranks of the last stage."""
    grad_norms: list[list[float]]
    answers: list[dict[str, Any]] = field(default_factory=list)
    """What `before` and `after` left in `answer`."""

    def traces(self) -> list[RankTrace]:
        """Of all ranks, by rank; whole and without losses."""
        return traces_in(self.folder)


#: Four processes each; dp is what remains.
LAYOUTS: dict[str, dict[str, Any]] = {
    "1f1b_overlaps": {"pp": 2, "overlap_grad_reduce": True, "overlap_param_gather": True},
    "1f1b_adam_tied": {"pp": 2, "optimizer": "megatron", "tie_embeddings": True},
    "pp4_per_token": {"pp": 4, "optimizer": "torch", "per_token_loss": True},
    "interleaved_overlap_p2p": {"pp": 2, "vpp": 2, "overlap_p2p": True},
    "interleaved_pp4": {"pp": 4, "vpp": 2, "layers": 8},
    "dp4_bf16": {"pp": 1, "bf16": True, "overlap_grad_reduce": True},
    "tp2_pp2": {"tp": 2, "pp": 2},
    "tp2_recompute": {"tp": 2, "pp": 1, "recompute": True},
    "evaluation": {"pp": 2, "eval_every": 2},
    "two_passes": {"pp": 2, "passes": 2},
}

_DDP_OPTIONS = """
import functools
ddp_config = pretrain.DistributedDataParallelConfig
pretrain.DistributedDataParallelConfig = functools.partial(ddp_config, reduce_scatter_with_fp32_accumulation=True)
"""
_QK_LAYERNORM = """
make_config, make_spec = pretrain.model_config, pretrain.get_gpt_layer_local_spec
def model_config(settings):
    config = make_config(settings)
    config.qk_layernorm = True
    return config
pretrain.model_config, pretrain.get_gpt_layer_local_spec = model_config, lambda: make_spec(qk_layernorm=True)
"""
_NO_QK_LAYERNORM = "pretrain.model_config, pretrain.get_gpt_layer_local_spec = make_config, make_spec"
_NO_DDP_OPTIONS = "pretrain.DistributedDataParallelConfig = ddp_config"
#: What the example has no flags for, or few want: settings, `before`, `after`.
RARE: dict[str, tuple[dict[str, Any], str, str]] = {
    "qk_layernorm": ({"pp": 1, "tp": 2}, _QK_LAYERNORM, _NO_QK_LAYERNORM),
    "aligned_gathers": (LAYOUTS["1f1b_overlaps"] | {"align_param_gather": True}, "", ""),
    "sums_in_fp32": ({"pp": 1, "overlap_grad_reduce": True}, _DDP_OPTIONS, _NO_DDP_OPTIONS),
    "sums_in_fp32_at_once": ({"pp": 1}, _DDP_OPTIONS, _NO_DDP_OPTIONS),
}
RARE_STEPS = 2
_GC_STATUS = """
import gc, smon_rt
status = smon_rt.gc.status()
answer.update(state=status.state, planned=status.planned, conflicts=status.conflicts, is_enabled=gc.isenabled())
smon_rt.gc.stop()
gc.enable()
"""
#: As Megatron's own loop does with the flag.
_MANUAL_GC = """
import gc, sys, types, smon_rt
arguments = types.SimpleNamespace(manual_gc=True, manual_gc_interval=2, save_interval=None)
sys.modules["megatron.training.global_vars"] = types.SimpleNamespace(get_args=lambda: arguments)
gc.disable()
gc.collect()
train_step = pretrain.train_step
def collecting_step(*given):
    result = train_step(*given)
    answer["iteration"] = answer.get("iteration", 0) + 1
    if answer["iteration"] % 2 == 0:
        gc.collect()
    return result
pretrain.train_step = collecting_step
smon_rt.gc.plan(3, warmup_steps=1)
"""
_NO_MANUAL_GC = """
pretrain.train_step = train_step
del sys.modules["megatron.training.global_vars"]
"""
#: Planned garbage collection, and Megatron's own beside a plan: `before`, `after`. All are LAYOUTS["1f1b_overlaps"].
COLLECTED: dict[str, tuple[str, str]] = {
    "planned_gc": ("import smon_rt; smon_rt.gc.plan(2, full_every=2, warmup_steps=1)", _GC_STATUS),
    "manual_gc": (_MANUAL_GC, _GC_STATUS + _NO_MANUAL_GC),
}


def run_cases(cases: Iterable[Case], folder: Path, processes: int = 4) -> dict[str, CaseResult]:
    """Trains cases one after the other in one launch. Names are unique: each has its folder.

    Raises:
        AssertionError: a rank failed, with what all of them said.
    """
    cases = list(cases)
    assert len({case.name for case in cases}) == len(cases)
    folder.mkdir(parents=True, exist_ok=True)
    cases_file = folder / "cases.json"
    cases_file.write_text(json.dumps([_as_json(case) for case in cases]))
    worker = str(Path(__file__).with_name("megatron_worker.py"))
    job = {"script": worker, "arguments": [str(cases_file)], "ranks": processes}
    command = [sys.executable, str(Path(__file__).with_name("forked_ranks.py")), json.dumps([job]), "megatron_pretrain"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=DEADLINE_S, env=_environment(), stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return {case.name: _result(case, folder / case.name, processes) for case in cases}


def with_and_without(layouts: Mapping[str, Mapping[str, Any]], steps: int = STEPS) -> list[Case]:
    """Each layout as "plain NAME" and, after all of these, recorded as "NAME": smon_rt is not loaded for the former."""
    own = {"steps": steps, "microbatches": MICROBATCHES}
    plain = [
        Case(f"plain {name}", own | dict(settings), before=_COUNT_BUCKET_GROUPS) for name, settings in layouts.items()
    ]
    return plain + [replace(case, name=case.name.removeprefix("plain "), recording=EVERYTHING) for case in plain]


def _rare() -> list[Case]:
    own = {"steps": RARE_STEPS, "microbatches": MICROBATCHES}
    return [
        Case(name, own | settings, EVERYTHING, f"{before}\n{_COUNT_BUCKET_GROUPS}", after)
        for name, (settings, before, after) in RARE.items()
    ]


def _collected() -> list[Case]:
    settings = {"steps": STEPS, "microbatches": MICROBATCHES} | LAYOUTS["1f1b_overlaps"]
    return [Case(name, settings, EVERYTHING, before, after) for name, (before, after) in COLLECTED.items()]


_layouts: dict[str, CaseResult] = {}


@pytest.fixture(scope="session")
def layouts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, CaseResult]:
    """All of LAYOUTS, recorded ("NAME") and not ("plain NAME"), of RARE and COLLECTED; trained once for all modules."""
    if not _layouts:
        cases = [*with_and_without(LAYOUTS), *_collected(), *_rare()]  # rare ones leave options of theirs behind
        _layouts.update(run_cases(cases, tmp_path_factory.mktemp("megatron")))
    return _layouts


def _as_json(case: Case) -> dict[str, Any]:
    return asdict(case) | {"before": textwrap.dedent(case.before), "after": textwrap.dedent(case.after)}


def _environment() -> dict[str, str]:
    path = os.pathsep.join([str(EXAMPLES), str(ROOT / "python")])
    return environment() | {"PYTHONPATH": path, "MKL_NUM_THREADS": "1"}


def _result(case: Case, folder: Path, processes: int) -> CaseResult:
    found = [json.loads((folder / f"result-{rank}.json").read_text()) for rank in range(processes)]
    losses, grad_norms, answers = ([each[name] for each in found] for name in ("losses", "grad_norms", "answer"))
    return CaseResult(case, folder / "traces", losses, grad_norms, answers)
