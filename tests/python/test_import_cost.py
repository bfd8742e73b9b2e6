"""`import smon_rt` loads nothing heavy; tools/check_wheel.py measures its time."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tools.check_wheel import MUST_NOT_LOAD, needs_only_allowed


def modules_after(statement: str) -> set[str]:
    program = f"{statement}\nimport sys\nprint(*sys.modules)"
    output = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    return set(output.split())


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert modules_after("import smon_rt").isdisjoint(MUST_NOT_LOAD)


def test_importing_the_command_line_loads_no_command_and_no_engine() -> None:
    loaded = modules_after("import smon_rt.cli")
    assert loaded.isdisjoint(set(MUST_NOT_LOAD) - {"click"})
    assert not {name for name in loaded if name.startswith("smon_rt.cli.")}


def test_the_package_says_its_version_and_refuses_unknown_names() -> None:
    import smon_rt

    assert smon_rt.__version__.count(".") == 2
    assert "analysis" in dir(smon_rt)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = smon_rt.nonsense


@pytest.mark.parametrize(
    ("library", "allowed"),
    [
        ("libc.so.6", True),
        ("libm.so.6", True),
        ("ld-linux-x86-64.so.2", True),
        ("libgcc_s.so.1", True),
        ("libstdc++.so.6", False),
        ("libcudart.so.12", False),
        ("libarrow.so.2600", False),
        ("libpython3.11.so.1.0", False),
    ],
)
def test_only_the_c_library_and_its_companions_may_be_needed(library: str, allowed: bool) -> None:
    assert needs_only_allowed(library) is allowed
