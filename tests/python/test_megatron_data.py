"""What can be hooked of an iterator, without Megatron: the `__next__` that its class has from Python."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from smon_rt._backend import native
from smon_rt.integrations.megatron import data, notices
from smon_rt.integrations.patches import Patches
from smon_rt.integrations.state import switch


class Base:
    """Counts up."""

    position = 0

    def __next__(this) -> int:  # noqa: N805  # as jobs may call it
        this.position += 1
        if this.position > 3:
            raise StopIteration
        return this.position


class Inherits(Base):
    pass


class Overrides(Base):
    def __next__(self) -> int:
        return 10 * super().__next__()


class OfC(map):  # type: ignore[type-arg]
    pass


class Particular(type):
    def __setattr__(cls, name: str, value: Any) -> None:
        raise AttributeError(name)


class Guarded(metaclass=Particular):
    def __next__(self) -> int:
        return 1


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What would be recorded while recording."""
    found: list[str] = []

    def begin(*_arguments: Any) -> int:
        found.append("begun")
        return 0

    monkeypatch.setattr(data, "begin_unless_open", begin)
    monkeypatch.setattr(switch, "is_on", True)
    monkeypatch.setattr(data._Hooked, "patches", Patches())
    monkeypatch.setattr(data._Hooked, "classes", 0)
    yield found
    data._Hooked.patches.restore()
    assert not hasattr(Base.__next__, "__wrapped__")


def in_a_pass(iterators: Any, job: Callable[[], Any]) -> Any:
    schedule = data._with_recorded_data(lambda **_arguments: job())
    return schedule(data_iterator=iterators, model=None)


def test_a_class_is_hooked_where_its_next_is_defined_and_once(spans: list[str]) -> None:
    one, other = Inherits(), Base()
    original = vars(Base)["__next__"]
    for _ in range(2):
        assert in_a_pass([one, None, other], lambda: [next(one), next(other)])[0] == one.position
    assert len(spans) == 4
    assert "__next__" not in vars(Inherits)
    hook: Any = vars(Base)["__next__"]
    assert hook.__wrapped__ is original
    data._Hooked.patches.restore()
    assert vars(Base)["__next__"] is original


def test_an_override_calls_what_it_overrides_as_ever(spans: list[str]) -> None:
    one = Overrides()
    assert in_a_pass(one, lambda: [next(one), next(one), next(one), next(one, "no more")]) == [10, 20, 30, "no more"]
    assert len(spans) == 4
    assert not hasattr(vars(Base)["__next__"], "__wrapped__")


def test_only_what_this_pass_was_given_is_recorded(spans: list[str]) -> None:
    given, other = Base(), Base()

    def job() -> None:
        next(other)
        thread = threading.Thread(target=next, args=(given,))
        thread.start()
        thread.join()

    in_a_pass(given, job)
    next(given)
    assert (spans, given.position) == ([], 2)
    with pytest.raises(OSError, match="of the job"):
        in_a_pass(given, _raises)
    next(given)
    assert spans == []


def _raises() -> None:
    raise OSError("of the job")


def test_what_cannot_be_hooked_is_said(spans: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    said: dict[str, str] = {}
    monkeypatch.setattr(native, "set_fact", said.__setitem__)
    monkeypatch.setattr(notices, "look", lambda _model: None)
    iterators = [map(str, [1]), (each for each in [2]), OfC(str, [3]), Guarded(), iter([4]), object()]
    assert in_a_pass(iterators, lambda: [next(one) for one in iterators[:5]]) == ["1", 2, "3", 1, 4]  # type: ignore[call-overload]
    assert spans == []
    reasons = [data._hook(one) for one in iterators]
    assert all(reasons)
    assert said == {"hook.megatron.data_iterator": "; ".join(reasons)[:200]}
    assert reasons[3] == "next() of Guarded is not seen: its class has its own way to be changed"
    assert reasons[5] == "object has no __next__"
    one = Base()
    in_a_pass(one, lambda: None)
    assert said == {"hook.megatron.data_iterator": ""}


def test_a_job_that_makes_classes_has_few_of_them_kept(spans: list[str]) -> None:
    for number in range(data._MOST_CLASSES):
        assert data._hook(type(f"Made{number}", (), {"__next__": lambda _self: 7})()) == ""
    made = type("More", (), {"__next__": lambda _self: 7})()
    assert "more than 32 classes" in data._hook(made)
    assert in_a_pass(made, lambda: next(made)) == 7
