"""What of a tensor goes into a checkpoint: the range of memory it fills, in which order, and what refuses to be copied.

A dense tensor is taken as it lies in memory, whatever its strides (a permuted one keeps its own order, `permutation`
says which). One with gaps, or that shows the same memory twice, is copied into a dense one first (staged).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from smon_rt.errors import SmonError

#: Names of types in a safetensors header. What is not here is stored as bytes, and its type named beside it.
DTYPE_NAMES: dict[torch.dtype, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.uint16: "U16",
    torch.uint32: "U32",
    torch.uint64: "U64",
    torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
}

HOST = -1


class CheckpointError(SmonError):
    """A state cannot be captured or restored: which tensor or rank, why, what to do."""


@dataclass(frozen=True)
class TensorForm:
    """How a tensor is stored. `shape` is that of the stored bytes: the tensor's own, permuted by `permutation`.

    Two tensors of the same form are stored in the same way: a layout is the names and forms of its tensors.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    permutation: tuple[int, ...]
    device: int
    is_staged: bool

    @property
    def byte_count(self) -> int:
        count = self.dtype.itemsize
        for size in self.shape:
            count *= size
        return count

    @property
    def own_shape(self) -> tuple[int, ...]:
        """That of the tensor itself."""
        own = [0] * len(self.shape)
        for place, dimension in enumerate(self.permutation):
            own[dimension] = self.shape[place]
        return tuple(own)


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a DTensor, any other tensor itself."""
    if not is_dtensor(tensor):
        return tensor
    local: torch.Tensor = tensor._local_tensor  # type: ignore[attr-defined]
    return local


def is_dtensor(tensor: torch.Tensor) -> bool:
    return hasattr(tensor, "_local_tensor") and hasattr(tensor, "placements")


def form_of(name: str, tensor: torch.Tensor) -> TensorForm:
    """How a tensor is stored.

    Raises:
        CheckpointError: it has no memory of its own that could be copied; the message names it.
    """
    tensor = local_of(tensor)
    _refuse_without_memory(name, tensor)
    permutation = _memory_order(tensor)
    is_staged = permutation is None
    order = tuple(range(tensor.dim())) if permutation is None else permutation
    shape = tuple(tensor.shape[dimension] for dimension in order)
    device = HOST if tensor.device.type == "cpu" else _gpu_index(name, tensor)
    return TensorForm(tensor.dtype, shape, order, device, is_staged)


def _refuse_without_memory(name: str, tensor: torch.Tensor) -> None:
    if tensor.layout != torch.strided:
        raise CheckpointError(
            f"{name}: a {tensor.layout} tensor cannot be captured; make it dense, or give it by extra"
        )
    if tensor.device.type == "meta":
        raise CheckpointError(f"{name} is on the meta device and has no values; attach once it is materialised")
    if tensor.is_quantized:
        raise CheckpointError(f"{name} is quantized and cannot be captured; give it by extra, as bytes")
    if is_traceable_wrapper_subclass(tensor) or is_dtensor(tensor):
        raise CheckpointError(
            f"{name} is a {type(tensor).__name__}, which wraps other tensors and has no memory of its own; only "
            "DTensor is understood: give its parts by extra"
        )
    try:
        address = tensor.data_ptr()
    except Exception as error:  # fake and functional tensors
        raise CheckpointError(f"{name} is a {type(tensor).__name__} without memory that could be copied") from error
    if address == 0 and tensor.numel() > 0:
        raise CheckpointError(f"{name} is a {type(tensor).__name__} whose memory is not there (data_ptr 0)")


def _gpu_index(name: str, tensor: torch.Tensor) -> int:
    if tensor.device.type != "cuda":
        raise CheckpointError(
            f"{name} is on {tensor.device}: only tensors of the host and of CUDA devices are captured"
        )
    return int(tensor.device.index or 0)


def _memory_order(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """The dimensions from the outermost in memory to the innermost; None if they leave gaps or share memory."""
    if tensor.is_conj() or tensor.is_neg():
        return None
    identity = tuple(range(tensor.dim()))
    if tensor.is_contiguous():
        return identity
    strides = tensor.stride()
    order = sorted(identity, key=lambda dimension: (-strides[dimension], dimension))
    expected = 1
    for dimension in reversed(order):
        if tensor.shape[dimension] != 1 and strides[dimension] != expected:
            return None
        expected *= tensor.shape[dimension]
    return tuple(order)


def staging_for(tensor: torch.Tensor) -> torch.Tensor:
    """A dense tensor beside one with gaps, which each capture fills first."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)


@torch.no_grad()
def fill(target: torch.Tensor, form: TensorForm, content: memoryview) -> None:
    """Writes stored bytes into a tensor of the same shape and type, in place."""
    own = local_of(target.detach())
    if own.numel() == 0:
        return
    stored = stored_tensor(form, content)
    # Of memory that is shown several times, one place.
    for dimension, stride in enumerate(own.stride()):
        if stride == 0 and own.shape[dimension] > 1:
            own, stored = own.narrow(dimension, 0, 1), stored.narrow(dimension, 0, 1)
    own.copy_(stored)


def stored_tensor(form: TensorForm, content: memoryview) -> torch.Tensor:
    """Stored bytes as a tensor of the shape that was captured; it shows that memory."""
    if form.byte_count == 0:
        return torch.empty(form.own_shape, dtype=form.dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of memory that cannot be written: nobody does
        flat = torch.frombuffer(content, dtype=torch.uint8).view(form.dtype)
    stored = flat.view(form.shape)
    inverse = [0] * len(form.permutation)
    for place, dimension in enumerate(form.permutation):
        inverse[dimension] = place
    return stored.permute(inverse)
