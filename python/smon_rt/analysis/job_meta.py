"""The job's record beside a trace: a YAML mapping with the sizes of its parallel dimensions."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from smon_rt.analysis.input_file import beside, exists, open_input, reason, shown, siblings
from smon_rt.errors import TraceError

# A job's record is a dozen lines. PyYAML needs a second for 64 KiB of hostile text, and over a minute for 1 MiB of it.
LARGEST_META_BYTES = 1 << 16
# Files that only happen to lie beside a trace: many may have to be looked into, so less of each.
_LARGEST_SIBLING_BYTES = 1 << 14
_DEEPEST_NESTING_COUNT = 20
_SUFFIXES = (".yaml", ".yml")

# Key in the file, field of Job, and whether the file may leave it out (then 1, as in the published artifact).
_SIZES = (
    ("dp_size", "dp_size", False),
    ("pp_size", "pp_size", False),
    ("tp_size", "tp_size", True),
    ("dsp_size", "cp_size", True),
    ("vpp_size", "vpp_size", True),
)


@dataclass(frozen=True)
class Job:
    """How a job is laid out: world_size = dp_size * pp_size * tp_size * cp_size.

    `vpp_size` is the number of model chunks a stage holds. `cp_size` is the artifact's dsp_size. `has_device_times` is
    False where the times are known to be the host's alone, as `smon export` writes it, and None where nothing is said.
    `layers` of each stage, where the record says them.
    """

    name: str
    dp_size: int
    pp_size: int
    tp_size: int
    cp_size: int
    vpp_size: int
    world_size: int
    has_device_times: bool | None = None
    layers: tuple[int, ...] | None = None

    def sizes(self) -> dict[str, int]:
        """The sizes by name, as the engine takes them."""
        return {name: value for name, value in vars(self).items() if name not in ("name", "has_device_times", "layers")}


class _MetaLoader(yaml.SafeLoader):
    """SafeLoader for a flat record: refuses aliases (with merge keys they grow exponentially) and deep nesting."""

    def __init__(self, stream: bytes) -> None:
        super().__init__(stream)
        self._depth_count = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not allowed")
        self._depth_count += 1
        if self._depth_count > _DEEPEST_NESTING_COUNT:
            raise yaml.YAMLError("nested too deeply")
        node = super().compose_node(parent, index)
        self._depth_count -= 1
        return node


def read_job(path: str, fallback_name: str) -> Job:
    """Reads the YAML at `path`; a record without trial_name gets `fallback_name`. Raises TraceError."""
    record = _read_mapping(path)
    name = shown(path)
    sizes: dict[str, int] = {}
    for key, field, optional in _SIZES:
        if key in record:
            sizes[field] = _positive_int(name, key, record[key])
        elif optional:
            sizes[field] = 1
        else:
            raise TraceError(f"{name}: the job's record lacks {key}; add it, or give the right file with --meta")
    product = math.prod(sizes[field] for field in ("dp_size", "pp_size", "tp_size", "cp_size"))
    world = _positive_int(name, "world_size", record.get("world_size", product))
    if world != product:
        factors = " * ".join(f"{key} {sizes[field]}" for key, field, _ in _SIZES if field != "vpp_size")
        raise TraceError(f"{name}: world_size is {world}, but {factors} = {product}; correct the job's record")
    said = record.get("has_device_times")
    has_device_times = said if isinstance(said, bool) else None
    layers = _layers(name, record.get("layers_per_stage"), sizes["pp_size"])
    job_name = _job_name(record, fallback_name)
    return Job(job_name, world_size=world, has_device_times=has_device_times, layers=layers, **sizes)


def _layers(name: str, said: Any, pp_size: int) -> tuple[int, ...] | None:
    """One number a stage; a record may leave them out."""
    if said is None:
        return None
    if not isinstance(said, list) or len(said) != pp_size:
        raise TraceError(f"{name}: layers_per_stage must list one number for each of {pp_size} stages; correct it")
    return tuple(_positive_int(name, "layers_per_stage", count) for count in said)


def find_meta(trace: str) -> str:
    """The path of the YAML that belongs to `trace`. Raises TraceError that names what was looked for."""
    label = trace_label(trace)
    stem = trace_stem(trace)
    names = [f"{base}{suffix}" for base in dict.fromkeys((f"meta-{label}", stem)) for suffix in _SUFFIXES]
    for name in names:
        candidate = beside(trace, name)
        if exists(candidate):
            return candidate
    matching = [path for path in siblings(trace, _SUFFIXES) if _names_job(path, {label, stem})]
    if len(matching) == 1:
        return matching[0]
    looked_for = shown(", ".join(names))
    if matching:
        found = shown(", ".join(path.rpartition("/")[2] for path in matching))
        raise TraceError(f"{shown(trace)}: several records name this job ({found}); choose one with --meta")
    raise TraceError(
        f"{shown(trace)}: no job record beside it (looked for {looked_for}, or a YAML with trial_name {shown(label)}); "
        "give it with --meta FILE"
    )


def trace_stem(trace: str) -> str:
    """The file name of a trace without folder and extension."""
    name = trace.rstrip("/").rpartition("/")[2]
    return re.sub(r"\.(parquet|pq)$", "", name)


def trace_label(trace: str) -> str:
    """The job a trace file is named after: AR for trace-AR.parquet, the stem otherwise."""
    stem = trace_stem(trace)
    return stem.removeprefix("trace-") or stem


def _read_mapping(path: str, largest_bytes: int = LARGEST_META_BYTES) -> Mapping[Any, Any]:
    name = shown(path)
    with open_input(path) as source:
        try:
            text = source.handle.read(largest_bytes + 1)
        except source.read_errors as error:
            raise TraceError(f"{name}: cannot be read ({reason(error)}); check the file") from None
    if len(text) > largest_bytes:
        raise TraceError(f"{name}: over {largest_bytes >> 10} KiB, no job's record is; give the YAML with --meta")
    try:
        record = yaml.load(text, Loader=_MetaLoader)
    except yaml.MarkedYAMLError as error:
        where = f" at line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise TraceError(f"{name}: not valid YAML ({shown(error.problem)}{where}); correct it") from None
    except (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
        # An explicit tag over a value that does not fit it (`!!int x`) escapes from PyYAML as a bare Python error.
        raise TraceError(f"{name}: not valid YAML ({reason(error)}); correct it") from None
    if not isinstance(record, dict):
        what = "is empty" if record is None else f"holds a {type(record).__name__}"
        raise TraceError(f"{name}: {what}, expected a mapping with dp_size, pp_size, ...; give the YAML with --meta")
    return record


def _positive_int(name: str, key: str, value: object) -> int:
    # bool is an int in Python, and `yes` a bool in YAML.
    if not isinstance(value, int) or isinstance(value, bool):
        raise TraceError(f"{name}: {key} is {_brief(value)}, expected a positive integer; correct the job's record")
    if value <= 0 or value >= 1 << 31:
        raise TraceError(f"{name}: {key} is {_brief(value)}, expected 1 to 2147483647; correct the job's record")
    return value


def _brief(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 64:
        # Python refuses to print integers of some thousand digits.
        return f"an integer of {value.bit_length()} bits"
    try:
        return shown(repr(value)[:40])
    except ValueError:
        return f"a {type(value).__name__}"


def _job_name(record: Mapping[Any, Any], fallback: str) -> str:
    value = record.get("trial_name", record.get("name"))
    if isinstance(value, str):
        return shown(value.strip() or fallback)
    return shown(fallback if value is None else _brief(value))


def _names_job(path: str, names: set[str]) -> bool:
    try:
        record = _read_mapping(path, _LARGEST_SIBLING_BYTES)
    except TraceError:
        return False
    return any(isinstance(record.get(key), str) and record[key] in names for key in ("trial_name", "name"))
