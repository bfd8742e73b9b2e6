"""Plain values as text, and back: no pickle, nothing that could run code. Tensors and bytes stay outside the text.

JSON with tags: what JSON has is itself; a dict with other keys than text, or any other type, is {"!": type, …}. A
tensor is {"!": "tensor", "name": …}, bytes are {"!": "bytes", "at": …, "count": …, "hash": …} in the bytes beside it.
"""

from __future__ import annotations

import collections
import hashlib
import io
import json
import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch

from smon_rt.checkpoint.tensors import CheckpointError

_TAG = "!"
_DEEPEST = 100


class Encoder:
    """Turns one state into JSON, bytes, and tensors that were met in it, by name."""

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self.bytes = bytearray()

    def encode(self, value: Any, path: str, depth: int = 0) -> Any:
        """`path` names a value in messages, and tensors in the file.

        Raises:
            CheckpointError: of a type that is not plain.
        """
        kind = type(value)
        if value is None or kind is bool or kind is int or kind is str:
            return value
        if kind is float:
            return value if math.isfinite(value) else {_TAG: "float", "value": repr(value)}
        if depth > _DEEPEST:
            raise CheckpointError(f"{path}: nested deeper than {_DEEPEST}, or within itself")
        if kind is list:
            return [self.encode(item, f"{path}.{at}", depth + 1) for at, item in enumerate(value)]
        if kind is dict and all(type(key) is str for key in value) and _TAG not in value:
            return {key: self.encode(item, f"{path}.{key}", depth + 1) for key, item in value.items()}
        return self._encode_tagged(value, kind, path, depth + 1)

    def _encode_tagged(self, value: Any, kind: type, path: str, depth: int) -> dict[str, Any]:
        if isinstance(value, torch.Tensor):
            name, at = path, 1
            while name in self.tensors:  # keys 1 and "1" are told apart here
                name, at = f"{path}#{at}", at + 1
            self.tensors[name] = value
            return {_TAG: "tensor", "name": name}
        if kind is bytes or kind is bytearray or kind is memoryview:
            return self._encode_bytes(kind.__name__, bytes(value))
        if kind is io.BytesIO:
            return self._encode_bytes("BytesIO", value.getvalue())
        if kind in (tuple, set, frozenset, collections.deque) or kind is torch.Size:
            items = [self.encode(item, f"{path}.{at}", depth) for at, item in enumerate(value)]
            more = {"maxlen": value.maxlen} if kind is collections.deque else {}
            return {_TAG: kind.__name__, "items": items, **more}
        if kind in (dict, collections.OrderedDict, collections.Counter):
            pairs = [
                [self.encode(key, f"{path}.key", depth), self.encode(item, f"{path}.{key}", depth)]
                for key, item in value.items()
            ]
            return {_TAG: kind.__name__, "pairs": pairs}
        if kind is complex:
            return {_TAG: "complex", "value": repr(value)}
        if kind is torch.dtype or kind is torch.device:
            return {_TAG: kind.__name__, "value": str(value).removeprefix("torch.")}
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)) and value.dtype.kind in "biufc":
            array = numpy.asarray(value)  # 0-dimensional of a scalar; ascontiguousarray would give it a dimension
            held = self._encode_bytes("numpy", array.tobytes())
            shape = list(array.shape)
            return held | {"dtype": array.dtype.str, "shape": shape, "is_scalar": isinstance(value, numpy.generic)}
        raise CheckpointError(f"{path}: a value of type {kind.__module__}.{kind.__qualname__} is not plain; give bytes")

    def _encode_bytes(self, kind: str, value: bytes) -> dict[str, Any]:
        at = len(self.bytes)
        self.bytes += value
        return {_TAG: kind, "at": at, "count": len(value), "hash": digest(value)}

    def pack(self, value: Any) -> bytes:
        """`value`, encoded before, with all bytes met: length of the text (8 bytes), text, bytes."""
        text = json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
        return len(text).to_bytes(8, "little") + text + self.bytes


def digest(value: bytes | memoryview) -> str:
    return hashlib.blake2b(value, digest_size=8).hexdigest()


def unpack(packed: memoryview) -> tuple[Any, bytes]:
    """What `Encoder.pack` packed, still encoded; what follows it is passed over.

    Raises:
        CheckpointError: it is damaged.
    """
    length = int.from_bytes(packed[:8], "little")
    if length > len(packed) - 8:
        raise CheckpointError("values of the checkpoint are cut off")
    try:
        return json.loads(bytes(packed[8 : 8 + length])), bytes(packed[8 + length :])
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"values of the checkpoint cannot be read: {error}") from error


def decode(value: Any, content: bytes, tensor_of: Callable[[str], torch.Tensor]) -> Any:
    """The value that `Encoder.encode` was given.

    Raises:
        CheckpointError: it is none that was encoded, or bytes are not those that were captured.
    """
    if isinstance(value, list):
        return [decode(item, content, tensor_of) for item in value]
    if not isinstance(value, Mapping):
        return value
    if _TAG not in value:
        return {key: decode(item, content, tensor_of) for key, item in value.items()}
    try:
        return _decode_tagged(value, content, tensor_of)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"a value of the checkpoint cannot be read: {error!r}") from error


def _decode_tagged(value: Mapping[str, Any], content: bytes, tensor_of: Callable[[str], torch.Tensor]) -> Any:
    kind = value[_TAG]
    if kind == "tensor":
        return tensor_of(value["name"])
    if "at" in value:
        return _decode_bytes(value, content)
    if kind in ("float", "complex"):
        return {"float": float, "complex": complex}[kind](value["value"])
    if kind == "dtype":
        found = getattr(torch, value["value"], None)
        if not isinstance(found, torch.dtype):
            raise CheckpointError(f"this torch has no type {value['value']!r}")
        return found
    if kind == "device":
        return torch.device(value["value"])
    if "pairs" in value:
        pairs = [(decode(key, content, tensor_of), decode(item, content, tensor_of)) for key, item in value["pairs"]]
        return (
            {"dict": dict, "OrderedDict": collections.OrderedDict}[kind](pairs)
            if kind != "Counter"
            else (collections.Counter(dict(pairs)))
        )
    items = [decode(item, content, tensor_of) for item in value["items"]]
    if kind == "deque":
        return collections.deque(items, value["maxlen"])
    return {"tuple": tuple, "set": set, "frozenset": frozenset, "Size": torch.Size}[kind](items)


def _decode_bytes(value: Mapping[str, Any], content: bytes) -> Any:
    held = content[value["at"] : value["at"] + value["count"]]
    if len(held) != value["count"] or digest(held) != value["hash"]:
        raise CheckpointError("bytes of the checkpoint are not those that were captured")
    kind = value[_TAG]
    if kind == "numpy":
        import numpy as np

        array = np.frombuffer(held, dtype=np.dtype(value["dtype"])).reshape(value["shape"]).copy()
        return array[()] if value["is_scalar"] else array
    if kind == "memoryview":
        return held
    return {"bytes": bytes, "bytearray": bytearray, "BytesIO": io.BytesIO}[kind](held)
