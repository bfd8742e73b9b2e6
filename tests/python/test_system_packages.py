"""The list of system packages can be read, and what is missing is asked for in one command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools import install_system_packages as installer

SCRIPT = Path(installer.__file__)
LIST = SCRIPT.with_name("system-packages.txt")


def run_dry(packages: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    listed = tmp_path / "packages.txt"
    listed.write_text(packages, encoding="utf-8")
    command = [sys.executable, str(SCRIPT), "--dry-run", "--list", str(listed)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_every_listed_package_has_both_names_and_a_probe_that_works() -> None:
    packages = installer.read_packages(LIST)
    assert packages
    for package in packages:
        assert package.needed_for in {"build", "test", "fuzz", "cache", "browser"}
        installer.is_present(package.probe)


def test_a_probe_of_an_unknown_sort_is_refused() -> None:
    with pytest.raises(SystemExit, match="unknown probe"):
        installer.is_present("smell:coffee")


def test_without_root_a_missing_required_package_gives_one_command_and_exit_code_2(tmp_path: Path) -> None:
    result = run_dry("no-such-pkg no-such-rpm command:no-such-program build\n", tmp_path)
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert "sudo" in line
    assert "no-such-" in line


def test_a_missing_optional_package_is_said_and_is_no_failure(tmp_path: Path) -> None:
    result = run_dry("no-such-pkg no-such-rpm command:no-such-program fuzz\n", tmp_path)
    assert result.returncode == 0
    assert "optional" in result.stderr


def test_nothing_is_said_about_what_is_there(tmp_path: Path) -> None:
    result = run_dry("# comment\n\nsh-pkg sh-rpm command:no-such-program|sh build\n", tmp_path)
    assert result.returncode == 0
    assert result.stdout == "system packages: all there\n"
