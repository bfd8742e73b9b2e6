"""`Calls` over `smon_rt._runtime`. Importing it raises ImportError where the library is not there."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from smon_rt._runtime import OK, TensorAddresses, last_error
from smon_rt._runtime import Checkpoint as NativeCheckpoint
from smon_rt.checkpoint.calls import Addresses, HeldCopy, Label, OpenOptions
from smon_rt.checkpoint.layout import Range
from smon_rt.checkpoint.tensors import CheckpointError

#: The table of addresses that `NativeCalls.capture` takes.
make_table = TensorAddresses


class NativeCalls:
    """The checkpoint of this process; see `Calls`."""

    def __init__(self) -> None:
        self._native = NativeCheckpoint()

    def open(self, options: OpenOptions) -> int:
        result, incarnation = self._native.open(dataclasses.asdict(options) | {"agent_program": None})
        _must_be_ok(result)
        return incarnation

    def close(self, job_is_over: bool) -> None:
        self._native.close(job_is_over)

    def fence(self, incarnation: int) -> None:
        _must_be_ok(self._native.fence(incarnation))

    def list(self) -> list[HeldCopy]:
        result, copies = self._native.list()
        _must_be_ok(result)
        return [HeldCopy(Label(*one[0]), *one[1:]) for one in copies]

    def pin(self, label: Label, kept: Sequence[Label]) -> None:
        _must_be_ok(self._native.pin(label, kept))

    def fetch(self, label: Label, tier: int) -> memoryview:
        result, content = self._native.fetch(label, tier)
        _must_be_ok(result)
        assert content is not None
        return content

    def release(self) -> None:
        self._native.release()

    def go_on(self, incarnation: int, next_step: int) -> None:
        _must_be_ok(self._native.go_on(incarnation, next_step))

    def reject(self, label: Label, reason: str) -> None:
        _must_be_ok(self._native.reject(label, reason))

    def set_layout(self, header: bytes, ranges: Sequence[Range]) -> None:
        taken = [(one.offset, one.byte_count, one.address, one.device, one.is_volatile) for one in ranges]
        _must_be_ok(self._native.set_layout(header, taken))

    def capture(self, step: int, addresses: Addresses, stream: int) -> int:
        assert isinstance(addresses, TensorAddresses)
        return self._native.capture(step, addresses, stream)

    def before_update(self, stream: int) -> None:
        self._native.before_update(stream)

    def status(self) -> dict[str, Any]:
        return self._native.status()


def _must_be_ok(result: int) -> None:
    if result != OK:
        raise CheckpointError(last_error() or f"the library answered {result}")
