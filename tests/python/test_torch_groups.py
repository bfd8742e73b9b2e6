"""What hooks know of a process group."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from smon_rt.integrations.torch import groups


class _Recorder:
    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def register_communicator(self, *args: Any) -> int:
        self.calls.append(args)
        return 7

    def set_stream_waits(self, comm_id: int) -> None:
        self.calls.append((comm_id,))


def _registered(monkeypatch: pytest.MonkeyPatch, **more: Any) -> list[tuple[Any, ...]]:
    recorder = _Recorder()
    monkeypatch.setattr(groups, "native", recorder)
    monkeypatch.setattr(groups, "_known", {})
    process_group = SimpleNamespace(group_name="3", group_desc="", rank=lambda: 1, **more)
    assert groups.describe(process_group, [0, 1]).register() == 7
    return recorder.calls


@pytest.mark.parametrize("devices", [("cuda",), ("cpu", "cuda")])
def test_waits_of_a_group_of_gpus_are_said_to_be_the_streams(
    monkeypatch: pytest.MonkeyPatch, devices: tuple[str, ...]
) -> None:
    types = [SimpleNamespace(type=name) for name in devices]
    assert _registered(monkeypatch, _device_types=types) == [("3", "", [0, 1]), (7,)]


@pytest.mark.parametrize("more", [{}, {"_device_types": [SimpleNamespace(type="cpu")]}])
def test_waits_of_other_groups_are_the_hosts(monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]) -> None:
    assert _registered(monkeypatch, **more) == [("3", "", [0, 1])]
