"""Hands the extension modules to CMake and the schemas to protoc; everything else is in pyproject.toml.

`pip install -e .` builds in build/release by the release preset, the same tree that `cmake --build` uses, and leaves
the modules in python/smon_rt. A wheel is built apart, in a fresh folder, so that nothing stale gets into it.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent


def find_program(name: str) -> str:
    """A program of this Python's environment first: a stale one on PATH may be too old."""
    beside_python = Path(sys.executable).parent / name
    found = str(beside_python) if beside_python.exists() else shutil.which(name)
    if found is None:
        raise SystemExit(f"{name} is not installed: run `pip install {name}`")
    return found


class CMakeBuild(build_ext):
    """Builds all extensions in one CMake run."""

    def run(self) -> None:
        cmake, ninja = find_program("cmake"), find_program("ninja")
        import pybind11

        settings = {
            "CMAKE_MAKE_PROGRAM": ninja,
            "Python_EXECUTABLE": sys.executable,
            "pybind11_DIR": pybind11.get_cmake_dir(),
        }
        if self.inplace:
            build_dir = ROOT / "build" / "release"
            configure = [cmake, "--preset", "release"]
        else:
            build_dir = Path(self.build_temp).resolve()
            configure = [cmake, "-S", str(ROOT), "-B", str(build_dir), "-G", "Ninja"]
            settings |= {
                "CMAKE_BUILD_TYPE": "Release",
                "SMON_RT_BUILD_TESTS": "OFF",
                "SMON_RT_PYTHON_OUTPUT_DIR": str(Path(self.build_lib).resolve() / "smon_rt"),
            }
        jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", str(os.cpu_count() or 1))
        # smon_rt is libsmon_rt.so and its header; smon_contract is a program of `smon check-gpu`; smon-agent keeps
        # checkpoints.
        modules = [extension.name.rpartition(".")[2] for extension in self.extensions]
        targets = [*modules, "smon_rt", "smon_contract", "smon-agent"]
        given = shlex.split(os.environ.get("CMAKE_ARGS", ""))  # as packagers are used to
        defined = [f"-D{key}={value}" for key, value in settings.items()]
        subprocess.run([*configure, *defined, *given], cwd=ROOT, check=True)
        subprocess.run([cmake, "--build", str(build_dir), "-j", jobs, "--target", *targets], cwd=ROOT, check=True)


class GenerateAndBuild(build_py):
    """Generates the message classes: in place for an editable install, else into the wheel, over any stale ones."""

    def run(self) -> None:
        super().run()
        package = ROOT / "python" if self.editable_mode else Path(self.build_lib)
        # Not every Python that this is built for has grpcio-tools: another one may bring them.
        python = os.environ.get("SMON_RT_PROTOC_PYTHON", sys.executable)
        command = [python, str(ROOT / "tools" / "generate_proto.py"), str(package / "smon_rt" / "_proto")]
        subprocess.run(command, check=True)


with tempfile.TemporaryDirectory(prefix="smon-rt-build-") as fresh_folder:
    setup(
        ext_modules=[Extension("smon_rt._analysis", sources=[]), Extension("smon_rt._runtime", sources=[])],
        cmdclass={"build_ext": CMakeBuild, "build_py": GenerateAndBuild},
        options={"build": {"build_base": fresh_folder}},
    )
