"""Planted violations of the architecture are caught, with file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import check_layers

ROOT = Path(check_layers.__file__).resolve().parent.parent


def plant(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_the_project_itself_follows_its_architecture() -> None:
    assert check_layers.check(ROOT) == []


def test_an_arrow_the_wrong_way_is_caught_with_file_and_line(tmp_path: Path) -> None:
    plant(tmp_path, "csrc/format/kind.h", '#pragma once\n\n#include "analysis/op_table.h"\n')
    (violation,) = check_layers.check(tmp_path)
    assert violation == 'csrc/format/kind.h:3: format includes "analysis/op_table.h": format may include base only'


@pytest.mark.parametrize(
    ("file", "include"),
    [
        ("csrc/analysis/a.cc", "<pybind11/pybind11.h>"),
        ("csrc/analysis/a.cc", "<cuda_runtime.h>"),
        ("csrc/record/a.cc", "<nccl.h>"),
        ("csrc/record/a.cc", "<cupti.h>"),
        ("csrc/analysis/a.cc", "<torch/torch.h>"),
        ("csrc/analysis/a.cc", "<protozero/pbf_reader.hpp>"),
        ("csrc/record/a.cc", "<dlfcn.h>"),
        ("csrc/format/a.cc", "<google/protobuf/message.h>"),
        ("csrc/analysis/a.cc", '"record/ring.h"'),
        ("csrc/record/a.cc", '"analysis/op_graph.h"'),
        ("csrc/record/a.cc", '"agent/agent.h"'),
        ("csrc/torch/a.cc", '"api/runtime.h"'),
        ("csrc/bindings/a.cc", '"record/ring.h"'),
        ("cuda/a.cu", '"analysis/op_graph.h"'),
        ("csrc/base/a.cc", '"result.h"'),
        ("csrc/invented/a.cc", "<vector>"),
    ],
)
def test_an_include_that_is_not_in_the_table_is_caught(tmp_path: Path, file: str, include: str) -> None:
    plant(tmp_path, file, f"#include {include}\n")
    (violation,) = check_layers.check(tmp_path)
    assert ":1: " in violation


@pytest.mark.parametrize(
    ("file", "include"),
    [
        ("csrc/base/dynamic_library.cc", "<dlfcn.h>"),
        ("csrc/format/encode.cc", "<protozero/pbf_writer.hpp>"),
        ("csrc/format/encode.cc", '"base/result.h"'),
        ("csrc/bindings/analysis_module.cc", "<pybind11/pybind11.h>"),
        ("csrc/torch/hooks.cc", '"smon_rt.h"'),
        ("csrc/api/runtime.cc", '"cuda/cuda_timer.h"'),
        ("cuda/cuda_timer.cc", '"record/gpu_timer.h"'),
        ("cuda/kernels.cu", "<cuda_runtime.h>"),
        ("csrc/analysis/simulator.cc", '"analysis/op_graph.h"'),
    ],
)
def test_an_include_that_is_in_the_table_passes(tmp_path: Path, file: str, include: str) -> None:
    plant(tmp_path, file, f"#include <vector>\n#include {include}\n")
    assert check_layers.check(tmp_path) == []


def test_a_component_that_links_what_it_may_not_include_is_caught(tmp_path: Path) -> None:
    plant(
        tmp_path,
        "csrc/analysis/CMakeLists.txt",
        "# engine\nsmon_component(NAME analysis\n  SOURCES a.cc\n  DEPENDS base record\n  LINK Threads::Threads)\n",
    )
    (violation,) = check_layers.check(tmp_path)
    assert violation.startswith("csrc/analysis/CMakeLists.txt:2: analysis depends on record")


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("__init__.py", "import numpy as np\n"),
        ("__init__.py", "from smon_rt import _analysis\n"),
        ("__init__.py", "from . import analysis\n"),
        ("errors.py", "try:\n    import pyarrow.parquet\nexcept ImportError:\n    pass\n"),
        ("cli/__init__.py", "from rich.console import Console\n"),
        ("analysis/importer.py", "def f() -> None:\n    import torch.distributed\n"),
        ("analysis/deep/er.py", "from smon_rt._runtime import start\n"),
        ("report/html.py", "from smon_rt.cli import main\n"),
        ("synth/truth.py", "from smon_rt.analysis.importer import read_trace\n"),
        ("integrations/torch.py", "from .. import _analysis\n"),
    ],
)
def test_a_python_import_against_the_rules_is_caught(tmp_path: Path, file: str, text: str) -> None:
    plant(tmp_path, f"python/smon_rt/{file}", text)
    (violation,) = check_layers.check(tmp_path)
    assert violation.startswith(f"python/smon_rt/{file}:")


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("__init__.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from smon_rt import analysis\n"),
        ("__init__.py", "def f() -> None:\n    import numpy\n"),
        ("cli/__init__.py", "import click\nfrom smon_rt.errors import SmonError\n"),
        ("analysis/importer.py", "import numpy\nfrom smon_rt import _analysis\n"),
    ],
)
def test_a_python_import_within_the_rules_passes(tmp_path: Path, file: str, text: str) -> None:
    plant(tmp_path, f"python/smon_rt/{file}", text)
    assert check_layers.check(tmp_path) == []
