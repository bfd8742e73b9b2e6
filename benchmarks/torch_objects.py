"""Objects like those that torch hands to hooks, without torch, which takes minutes to load under callgrind.

They lie in memory as pybind11 and torch 2.15 have it, and are read by functions instead of torch's own. Not collected:
run it with the garbage collector off, and leave by `os._exit`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

__all__ = ["Hooked", "PostHookArgs", "PreHookArgs", "Work", "as_torch_calls", "getters"]

_HEAD_BYTES = object.__basicsize__
_WORD_BYTES = ctypes.sizeof(ctypes.c_void_p)
_SIMPLE_LAYOUT = 2

_Bound = type("pybind11_type", (type,), {})


def _bind(name: str) -> type:
    # The value, its holder of two words, weak references, flags; and Python's own weak references.
    slots = {"__slots__": ("a_value", "b_holder", "c_holder", "d_references", "e_flags", "__weakref__")}
    made: type = _Bound(name, (), slots)
    return made


PreHookArgs, PostHookArgs, Work = map(_bind, ("PreHookArgs", "PostHookArgs", "Work"))


class Tensor:
    """As much of one as hooks look at."""

    def __init__(self) -> None:
        self.nbytes = 400
        self.is_cpu = True
        self._cdata = id(self)

    def data_ptr(self) -> int:
        return id(self)


class _Before(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_uint8),
        ("is_async", ctypes.c_bool),
        ("inputs", ctypes.c_void_p * 3),
        ("outputs", ctypes.c_void_p * 3),
        ("root", ctypes.c_int64),
        ("op_id", ctypes.c_int64),
    )


class _After(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_uint8),
        ("is_async", ctypes.c_bool),
        ("work", ctypes.c_void_p),
        ("op_id", ctypes.c_int64),
    )


def _point(bound: object, value: int) -> None:
    """Has the object of pybind11 be one of this value."""
    words = (ctypes.c_size_t * 5).from_address(id(bound) + _HEAD_BYTES)
    words[0], words[4] = value, _SIMPLE_LAYOUT


class Hooked:
    """The arguments of one operation after the other. `says` is what attributes say, as far as it is something else."""

    def __init__(self) -> None:
        self.before, self.after, self.work = PreHookArgs(), PostHookArgs(), Work()
        self.tensor = Tensor()
        self.says: dict[str, Any] = {}
        self.reads = 0
        self._tensors = (ctypes.c_void_p * 1)(self.tensor._cdata)
        self._before, self._after, self._work = _Before(), _After(), (ctypes.c_void_p * 8)()
        begin = ctypes.addressof(self._tensors)
        self._before.inputs[:] = begin, begin + _WORD_BYTES, begin + _WORD_BYTES
        self._after.work = ctypes.addressof(self._work)
        self.before_at, self.after_at = ctypes.addressof(self._before), ctypes.addressof(self._after)
        addresses = self.before_at, self.after_at, ctypes.addressof(self._work)
        for bound, address in zip((self.before, self.after, self.work), addresses, strict=True):
            _point(bound, address)

    def issue(self, name: int, root: int, op_id: int) -> None:
        """The next operation is this."""
        self._before.name = self._after.name = name
        self._before.root, self._before.op_id, self._after.op_id = root, op_id, op_id

    def read(self, name: str) -> Any:
        """An attribute, as Python asks for it."""
        self.reads += 1
        return self.says.get(name, self._value(name))

    def _value(self, name: str) -> Any:
        if name in ("name", "value", "root"):
            return getattr(self._before, "name" if name == "value" else name)
        if name == "op_id":
            return self._before.op_id
        return {"input_tensors": [self.tensor], "output_tensors": [], "async_op": False, "work": self.work}[name]


class _FunctionObject(ctypes.Structure):
    """A PyCFunctionObject, after the head."""

    _fields_ = (("definition", ctypes.c_void_p), ("record", ctypes.c_void_p))


#: Where pybind11 keeps the address of a plain function in its record: after three texts, a vector and a pointer.
_ADDRESS_AT = 7 * _WORD_BYTES


def as_torch_calls(function: object) -> Callable[[int], None]:
    """The plain function in what `make_hook_functions` made: called with the address of arguments, without the GIL."""
    own = _FunctionObject.from_address(id(function) + _HEAD_BYTES)
    record = ctypes.c_void_p.from_address(own.record + _HEAD_BYTES).value
    assert record is not None
    address = ctypes.c_void_p.from_address(record + _ADDRESS_AT).value
    assert address is not None
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)


#: In the order of `learn_torch`.
_GETTERS = ("op_id", "name", "value", "input_tensors", "output_tensors", "root", "op_id", "async_op", "work")


def getters(hooked: Hooked) -> list[Callable[[Any], Any]]:
    """Functions that hand over attributes, for `learn_torch`."""

    def getter(name: str) -> Callable[[Any], Any]:
        return lambda _object: hooked.read(name)

    return [getter(name) for name in _GETTERS]
