"""The NCCL profiler plug-in, driven as NCCL drives it, without NCCL: what it exports answers, whatever it is handed."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import smon_rt
from smon_rt.check_gpu.model import Finding

__all__ = ["VERSIONS", "Driven", "drive", "run"]

VERSIONS = (4, 5, 6)
LIBRARY = Path(smon_rt.__file__).parent / "lib" / "libsmon_rt.so"
OPS = 1000

# Bits of the mask, which are also the types of events.
_COLL, _PROXY_OP, _PROXY_STEP, _COLL_API = 1 << 1, 1 << 3, 1 << 4, 1 << 9
# States that a step of the proxy goes through when it sends.
_SEND_GPU_WAIT, _SEND_PEER_WAIT, _SEND_WAIT = 8, 20, 9

#: A handle that nobody gave, as a process gets those of another one.
_FOREIGN_HANDLE = 0x7F00_DEAD_BEEF

_START = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p)
_ONE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_STATE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
#: What init takes at its end.
_WHO = (ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_void_p)  # nodes, ranks, rank, logger
_CONTEXT, _MASK = ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_int)
#: The order of what `init` takes changed after version 4.
_INIT_4 = ctypes.CFUNCTYPE(ctypes.c_int, _CONTEXT, _MASK, ctypes.c_char_p, ctypes.c_uint64, *_WHO)
_INIT_5 = ctypes.CFUNCTYPE(ctypes.c_int, _CONTEXT, ctypes.c_uint64, _MASK, ctypes.c_char_p, *_WHO)


class _Table4(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("init", _INIT_4),
        ("start", _START),
        ("stop", _ONE),
        ("state", _STATE),
        ("finalize", _ONE),
    ]


class _Table5(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("init", _INIT_5), *_Table4._fields_[2:]]


class _Coll(ctypes.Structure):
    _fields_ = [
        ("sequence", ctypes.c_uint64),
        ("function", ctypes.c_char_p),
        ("send_buffer", ctypes.c_void_p),
        ("receive_buffer", ctypes.c_void_p),
        ("count", ctypes.c_size_t),
        ("root", ctypes.c_int),
        ("datatype", ctypes.c_char_p),
        ("channels", ctypes.c_uint8),
        ("warps", ctypes.c_uint8),
        ("algorithm", ctypes.c_char_p),
        ("protocol", ctypes.c_char_p),
        ("parent_group", ctypes.c_void_p),  # from version 5 on
    ]


class _CollApi(ctypes.Structure):
    _fields_ = [
        ("function", ctypes.c_char_p),
        ("count", ctypes.c_size_t),
        ("datatype", ctypes.c_char_p),
        ("root", ctypes.c_int),
        ("stream", ctypes.c_void_p),
        ("is_captured", ctypes.c_bool),
    ]


class _ProxyOp(ctypes.Structure):
    _fields_ = [
        ("pid", ctypes.c_int),
        ("channel", ctypes.c_uint8),
        ("peer", ctypes.c_int),
        ("steps", ctypes.c_int),
        ("chunk_bytes", ctypes.c_int),
        ("is_send", ctypes.c_int),
    ]


class _Part(ctypes.Union):
    # Room for parts that are not used here.
    _fields_ = [
        ("coll", _Coll),
        ("coll_api", _CollApi),
        ("proxy_op", _ProxyOp),
        ("step", ctypes.c_int),
        ("room", ctypes.c_uint8 * 128),
    ]


class _Event(ctypes.Structure):
    # The type is a byte up to version 4: the first one of these, on the machines that there are GPUs for.
    _fields_ = [
        ("type", ctypes.c_uint64),
        ("parent", ctypes.c_void_p),
        ("rank", ctypes.c_int),
        ("part", _Part),
    ]


@dataclass
class Driven:
    """What one version of the plug-in answered."""

    version: int
    name: str = ""
    mask: int = 0
    calls: int = 0
    faults: list[str] = field(default_factory=list)


@dataclass
class _Driver:
    table: Any
    driven: Driven
    context: ctypes.c_void_p = field(default_factory=ctypes.c_void_p)

    def call(self, name: str, *arguments: Any) -> None:
        """Calls what NCCL calls; anything but success would end the job's communication."""
        self.driven.calls += 1
        if code := getattr(self.table, name)(*arguments):
            self.fault(f"{name} gives {code}")

    def fault(self, words: str) -> None:
        if words not in self.driven.faults:
            self.driven.faults.append(words)

    def init(self) -> None:
        mask, commons = ctypes.c_int(0), (b"check", 2, 2, 0, None)
        name, *who = commons
        first, second = ctypes.byref(self.context), ctypes.byref(mask)
        if self.driven.version == 4:
            self.call("init", first, second, name, 0x1234, *who)
        else:
            self.call("init", first, 0x1234, second, name, *who)
        self.driven.mask = mask.value
        if not self.context:
            self.fault("init gives no context")

    def start(self, kind: int, parent: int | None, event: _Event) -> int | None:
        """The handle of an event; NCCL begins only what the mask asks for."""
        if not self.driven.mask & kind:
            return None
        event.type, event.parent = kind, parent
        handle = ctypes.c_void_p(_FOREIGN_HANDLE)
        self.call("start", self.context, ctypes.byref(handle), ctypes.byref(event))
        if handle.value == _FOREIGN_HANDLE:
            self.fault("startEvent writes no handle")
        return handle.value


def drive(library: Path, version: int) -> Driven:
    """Drives one version of a library's plug-in."""
    try:
        table = (_Table4 if version == 4 else _Table5).in_dll(ctypes.CDLL(str(library)), f"ncclProfiler_v{version}")
    except (OSError, ValueError) as error:
        return Driven(version, faults=[str(error)])
    return drive_table(table, version)


def drive_table(table: Any, version: int) -> Driven:
    """All that NCCL may do: operations with all their parts, then what it does by mistake."""
    driven = Driven(version, (table.name or b"").decode("utf-8", "replace"))
    driver = _Driver(table, driven)
    driver.init()
    for number in range(OPS):
        _operation(driver, number)
    left_open = driver.start(_COLL, None, _coll(OPS))
    for handle in (None, _FOREIGN_HANDLE, left_open, left_open):  # nothing, foreign, and twice
        driver.call("stop", handle)
        driver.call("state", handle, _SEND_WAIT, None)
    under_way = driver.start(_COLL, None, _coll(OPS + 1))
    driver.call("finalize", driver.context)
    driver.call("stop", under_way)  # late, as the proxy's thread may be
    return driven


def _operation(driver: _Driver, number: int) -> None:
    """An all-reduce over the network: the call, the operation, one proxy operation of two steps."""
    call = driver.start(_COLL_API, None, _coll_api())
    operation = driver.start(_COLL, call, _coll(number))
    driver.call("stop", operation)  # it is enqueued
    driver.call("stop", call)
    proxy = driver.start(_PROXY_OP, operation, _proxy_op())
    for step in range(2):
        event = _Event(rank=0)
        event.part.step = step
        handle = driver.start(_PROXY_STEP, proxy, event)
        for state in (_SEND_GPU_WAIT, _SEND_PEER_WAIT, _SEND_WAIT):
            driver.call("state", handle, state, None)
        driver.call("stop", handle)
    driver.call("stop", proxy)


def _coll(number: int) -> _Event:
    event = _Event(rank=0)
    event.part.coll = _Coll(
        number, b"AllReduce", None, None, 1 << 20, 0, b"ncclFloat32", 2, 16, b"RING", b"SIMPLE", None
    )
    return event


def _coll_api() -> _Event:
    event = _Event(rank=0)
    event.part.coll_api = _CollApi(b"AllReduce", 1 << 20, b"ncclFloat32", 0, None, False)
    return event


def _proxy_op() -> _Event:
    event = _Event(rank=0)
    event.part.proxy_op = _ProxyOp(os.getpid(), 0, 1, 2, 1 << 19, 1)
    return event


def _all_driven() -> Iterator[Driven]:
    """Before anything is recorded, and while something is: the same plug-in serves both."""
    for version in VERSIONS:
        yield drive(LIBRARY, version)
    smon_rt.start(sample_ratio=1.0, warmup_steps=0, integrations="none", strict=True)
    with smon_rt.step(0):
        for version in VERSIONS:
            yield drive(LIBRARY, version)
    smon_rt.stop()


def run() -> Finding:
    """Each version before and during a recording; in a process that began none of it NCCL would find the same."""
    driven = list(_all_driven())
    faults = [f"v{one.version}: {fault}" for one in driven for fault in one.faults]
    while_recording = driven[len(VERSIONS) :]
    faults += [f"v{one.version}: asks for no collectives" for one in while_recording if not one.mask & _COLL]
    calls = sum(one.calls for one in driven)
    figures = {
        "versions": [one.version for one in while_recording],
        "masks": [one.mask for one in while_recording],
        "calls": calls,
        "faults": faults,
    }
    words = f"v{', v'.join(map(str, VERSIONS))}: {calls:,} calls, all answered" if not faults else "; ".join(faults[:4])
    return Finding(not faults, words, figures)
