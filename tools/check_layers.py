"""Checks that includes, CMake dependencies and Python imports follow the architecture; the tables here *are* it.

    python tools/check_layers.py [ROOT]

Prints `file:line: what is wrong` for each violation and exits with 1 if there is any. Layers and packages that do not
exist yet are in the tables already.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

#: layer → layers whose headers it may include (besides its own).
LAYERS: dict[str, frozenset[str]] = {
    "base": frozenset(),
    "format": frozenset({"base"}),
    "record": frozenset({"base", "format"}),
    "checkpoint": frozenset({"base", "format"}),
    "agent": frozenset({"base", "format", "checkpoint"}),
    "analysis": frozenset({"base", "format"}),
    "cuda": frozenset({"base", "format", "record", "checkpoint"}),
    "api": frozenset({"base", "format", "record", "checkpoint", "cuda"}),
    "torch": frozenset({"api"}),
    "bindings": frozenset({"api", "analysis", "format", "base"}),
}

#: (layer, other layer) → the only header of the other layer that it may include.
ONLY_HEADER: dict[tuple[str, str], str] = {
    ("torch", "api"): "api/smon_rt.h",
    ("bindings", "api"): "api/smon_rt.h",
}

#: (what, include pattern, its homes): a foreign header is included nowhere else.
FOREIGN_HEADERS: tuple[tuple[str, re.Pattern[str], frozenset[str]], ...] = (
    ("CUDA", re.compile(r"^(cuda|cupti|nvtx|nvml|driver_types|vector_types)\w*(\.h|\.hpp|/)"), frozenset({"cuda"})),
    ("NCCL", re.compile(r"^nccl\w*(\.h|/)"), frozenset({"cuda"})),
    ("torch", re.compile(r"^(torch|ATen|c10)/"), frozenset({"torch"})),
    ("pybind11", re.compile(r"^pybind11/"), frozenset({"bindings"})),
    ("CPython", re.compile(r"^Python\.h$"), frozenset({"bindings"})),
    ("protozero", re.compile(r"^protozero/"), frozenset({"format", "checkpoint"})),
    ("Asio", re.compile(r"^(boost/)?asio(\.hpp|/)"), frozenset({"agent"})),
    ("xxHash", re.compile(r"^xxh(ash|3)\.h$"), frozenset({"agent"})),
    ("nlohmann-json", re.compile(r"^nlohmann/"), frozenset({"agent"})),
    ("dlopen", re.compile(r"^dlfcn\.h$"), frozenset({"base"})),
    ("libprotobuf", re.compile(r"^google/protobuf/"), frozenset()),
    ("Arrow C++", re.compile(r"^(arrow|parquet)/"), frozenset()),
)

#: What a training process must not pay for when it imports smon_rt, and what recording never loads.
HEAVY_MODULES = (
    *("smon_rt._analysis", "smon_rt._proto", "smon_rt._runtime", "smon_rt.check_gpu"),
    *(
        "smon_rt.analysis",
        "smon_rt.checkpoint_tools",
        "smon_rt.cli",
        "smon_rt.export",
        "smon_rt.report",
        "smon_rt.synth",
        "smon_rt.trace",
    ),
    *("click", "fsspec", "google.protobuf", "numpy", "pandas", "plotly", "pyarrow", "rich", "torch", "xxhash", "yaml"),
)


@dataclass(frozen=True)
class PythonRule:
    """Files below python/smon_rt that must not import some modules; `at_import` spares imports inside functions."""

    files: tuple[str, ...]
    forbidden: tuple[str, ...]
    at_import: bool
    reason: str


PYTHON_RULES: tuple[PythonRule, ...] = (
    PythonRule(
        ("__init__.py", "errors.py", "environment.py"),
        HEAVY_MODULES,
        at_import=True,
        reason="`import smon_rt` must stay cheap: load it on first use",
    ),
    PythonRule(
        ("check_gpu/**/*.py",),
        ("smon_rt._runtime", "numpy", "torch"),
        at_import=True,
        reason="`smon check-gpu` runs without a GPU and without torch: load it in the check that needs it",
    ),
    PythonRule(
        ("cli/__init__.py",),
        tuple(name for name in HEAVY_MODULES if name not in ("smon_rt.cli", "click")),
        at_import=True,
        reason="`smon --help` must stay cheap: commands are loaded when they run",
    ),
    PythonRule(
        ("analysis/**/*.py", "export/**/*.py", "report/**/*.py", "synth/**/*.py", "trace/**/*.py"),
        ("smon_rt._runtime", "smon_rt.integrations", "torch"),
        at_import=False,
        reason="analysis must run on a laptop without the recorder, torch or CUDA",
    ),
    PythonRule(
        ("analysis/**/*.py", "export/**/*.py", "report/**/*.py", "synth/**/*.py", "trace/**/*.py"),
        ("smon_rt.cli", "click"),
        at_import=False,
        reason="the command line calls the library, never the reverse",
    ),
    PythonRule(
        ("checkpoint_tools/**/*.py",),
        ("smon_rt._runtime", "smon_rt.checkpoint", "smon_rt.cli", "smon_rt.integrations", "click", "torch"),
        at_import=False,
        reason="tools read what agents hold beside the job, without torch or the recorder",
    ),
    PythonRule(
        ("export/**/*.py", "trace/**/*.py"),
        ("smon_rt._analysis",),
        at_import=False,
        reason="traces are read and exported without the engine",
    ),
    PythonRule(
        ("synth/**/*.py",),
        ("smon_rt._analysis", "smon_rt.analysis"),
        at_import=False,
        reason="the generator's truth must be independent of the engine that it checks",
    ),
    PythonRule(
        ("_layout.py", "_recording.py", "run.py", "integrations/**/*.py", "gc/**/*.py"),
        ("torch", "megatron"),
        at_import=False,
        reason="hooks wait for the job to load a framework, and never load it: look in sys.modules",
    ),
    PythonRule(
        (
            *(
                "_backend.py",
                "_closing.py",
                "_inert.py",
                "_interleaved.py",
                "_layout.py",
                "_measured_step.py",
                "_recording.py",
            ),
            *("bench.py", "run.py"),
            *("integrations/**/*.py", "gc/**/*.py", "checkpoint/**/*.py", "_memory.py"),
        ),
        (
            *("smon_rt._analysis", "smon_rt.analysis", "smon_rt.checkpoint_tools"),
            *("smon_rt.report", "smon_rt.synth", "smon_rt.cli"),
        ),
        at_import=False,
        reason="recording never loads the analysis",
    ),
)

INCLUDE = re.compile(r'^\s*#\s*include\s*(?P<open>["<])(?P<path>[^">]+)[">]')
COMPONENT = re.compile(r"\bsmon_(component|python_module)\s*\((?P<body>[^)]*)\)", re.DOTALL)
CPP_SUFFIXES = frozenset({".h", ".hpp", ".cc", ".cpp", ".cu", ".cuh", ".inc"})


def check_include(layer: str, opening: str, path: str) -> str | None:
    """What is wrong with one include of a layer, or None."""
    for what, pattern, homes in FOREIGN_HEADERS:
        if pattern.match(path) and not (opening == '"' and path.partition("/")[0] in LAYERS):
            if layer in homes:
                return None
            allowed = ", ".join(sorted(homes)) or "the tests"
            return f"{layer} includes <{path}>: {what} headers live only in {allowed}"
    if opening == "<":
        return None
    if path == "smon_rt.h":
        path = "api/smon_rt.h"
    other = path.partition("/")[0]
    if "/" not in path or other not in LAYERS:
        return f'"{path}" names no layer: write project includes from csrc ("base/result.h"), foreign ones with <>'
    if other != layer and other not in LAYERS[layer]:
        allowed = ", ".join(sorted(LAYERS[layer])) or "nothing"
        return f'{layer} includes "{path}": {layer} may include {allowed} only'
    only = ONLY_HEADER.get((layer, other))
    if only is not None and path != only:
        return f'{layer} includes "{path}": of {other} it may include only "{only}"'
    return None


def layer_folders(root: Path) -> Iterator[tuple[str, Path]]:
    """Each folder with C++ of a layer: those of csrc, and cuda."""
    csrc = root / "csrc"
    if csrc.is_dir():
        yield from ((folder.name, folder) for folder in sorted(csrc.iterdir()) if folder.is_dir())
    if (root / "cuda").is_dir():
        yield "cuda", root / "cuda"


def check_cpp(root: Path) -> Iterator[str]:
    for layer, folder in layer_folders(root):
        if layer not in LAYERS:
            yield f"{folder.relative_to(root)}:1: no such layer: add it to LAYERS in tools/check_layers.py"
            continue
        for path in sorted(folder.rglob("*")):
            if path.suffix in CPP_SUFFIXES:
                for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
                    match = INCLUDE.match(line)
                    problem = match and check_include(layer, match["open"], match["path"])
                    if problem:
                        yield f"{path.relative_to(root)}:{number}: {problem}"
            elif path.name == "CMakeLists.txt":
                yield from check_cmake(root, layer, path)


def check_cmake(root: Path, layer: str, path: Path) -> Iterator[str]:
    """DEPENDS of a component must be what the layer may include."""
    text = path.read_text(encoding="utf-8")
    for match in COMPONENT.finditer(text):
        words = match["body"].split()
        if "DEPENDS" not in words:
            continue
        depends = words[words.index("DEPENDS") + 1 :]
        for word in depends:
            if word.isupper():  # the next keyword
                break
            if word != layer and word not in LAYERS[layer]:
                number = text.count("\n", 0, match.start()) + 1
                allowed = ", ".join(sorted(LAYERS[layer])) or "nothing"
                yield f"{path.relative_to(root)}:{number}: {layer} depends on {word}: it may on {allowed} only"


def is_type_checking(node: ast.If) -> bool:
    return ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def imports(node: ast.AST, package: str, at_import: bool) -> Iterator[tuple[int, str]]:
    """(line, absolute module name) of each import below a node; `from a import b` gives a and a.b."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from ((child.lineno, alias.name) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            base = child.module or ""
            if child.level:
                parents = package.split(".")
                base = ".".join([*parents[: len(parents) - child.level + 1], *([base] if base else [])])
            yield child.lineno, base
            yield from ((child.lineno, f"{base}.{alias.name}") for alias in child.names)
        elif isinstance(child, ast.If) and is_type_checking(child):
            for other in child.orelse:
                yield from imports(other, package, at_import)
        elif at_import and isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        else:
            yield from imports(child, package, at_import)


def check_python(root: Path) -> Iterator[str]:
    source = root / "python"
    for rule in PYTHON_RULES:
        for pattern in rule.files:
            for path in sorted((source / "smon_rt").glob(pattern)):
                package = ".".join(path.relative_to(source).parent.parts)
                tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
                reported: set[tuple[int, str]] = set()
                for line, name in imports(tree, package, rule.at_import):
                    for forbidden in rule.forbidden:
                        hit = name == forbidden or name.startswith(forbidden + ".")
                        if hit and (line, forbidden) not in reported:
                            reported.add((line, forbidden))
                            yield f"{path.relative_to(root)}:{line}: imports {forbidden}: {rule.reason}"


def check(root: Path) -> list[str]:
    """All violations below a root, one line each."""
    return [*check_cpp(root), *check_python(root)]


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    violations = check(root)
    for violation in violations:
        print(violation)
    print(f"check_layers: {len(violations)} violations" if violations else "check_layers: ok")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
