"""Which microbatch and chunk a tensor of a pipeline pass belongs to: Megatron's schedules say it of forwards only.

A backward gets the tensor that a forward returned, a send one that a compute returned: both are told by identity while
the schedule holds them. What a rank receives next follows from the order of its own computes, since its neighbours run
in the same order: that is checked when the tensor is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

__all__ = ["NO_IDS", "Ids", "PassIds", "Pipeline", "receive_orders"]


class Ids(NamedTuple):
    """Of a compute on this rank; -1: not known."""

    microbatch: int
    chunk: int


NO_IDS = Ids(-1, -1)
_MOST_OUTPUTS = 1 << 16


class Pipeline(NamedTuple):
    """What of a pass decides the order of computes."""

    rank: int
    size: int
    chunks: int
    microbatches: int
    group_size: int
    """Microbatches that run through one chunk before the next: at least `size`, if there are several chunks."""


def receive_orders(pipeline: Pipeline) -> tuple[list[Ids], list[Ids]]:
    """The computes that get their input from another rank, in order: forwards, backwards.

    Example:
        >>> forwards, backwards = receive_orders(Pipeline(rank=0, size=2, chunks=2, microbatches=2, group_size=2))
        >>> forwards[:2], len(backwards)
        ([Ids(microbatch=0, chunk=1), Ids(microbatch=1, chunk=1)], 4)
    """
    order = list(_order(pipeline))
    last = pipeline.chunks - 1
    forwards = [ids for ids in order if ids.chunk > 0 or pipeline.rank > 0]
    backwards = [Ids(ids.microbatch, last - ids.chunk) for ids in order]
    backwards = [ids for ids in backwards if ids.chunk < last or pipeline.rank < pipeline.size - 1]
    return forwards, backwards


def _order(pipeline: Pipeline) -> Iterator[Ids]:
    for first in range(0, pipeline.microbatches, pipeline.group_size):
        group = range(first, min(first + pipeline.group_size, pipeline.microbatches))
        for chunk in range(pipeline.chunks):
            for microbatch in group:
                yield Ids(microbatch, chunk)


class PassIds:
    """The tensors of one pass, by identity."""

    def __init__(self, pipeline: Pipeline | None, offset: int, models: Sequence[Any] = ()) -> None:
        """`pipeline`: None where what is received has no order that is known. `offset`: of passes before, in a step.
        `models`: this rank's chunks of the model."""
        self.offset = offset
        self._chunks = {id(model): place for place, model in enumerate(models)}
        self.are_receives_known = pipeline is not None
        forwards, backwards = ([], []) if pipeline is None else receive_orders(pipeline)
        self._receives: dict[bool, Iterator[Ids]] = {True: iter(forwards), False: iter(backwards)}
        self._outputs: dict[int, Ids] = {}
        self._results: dict[bool, dict[int, Ids]] = {True: {}, False: {}}
        self._received: dict[int, Ids] = {}
        self._counted: dict[int, int] = {}

    def of_forward(self, microbatch: Any, chunk: Any, model: Any) -> Ids:
        """Ids of a forward that says what it is. Where it does not say the microbatch, that is counted, and the chunk
        is told by the model (before core 0.13)."""
        place = chunk if isinstance(chunk, int) else self._chunks.get(id(model), 0)
        if not isinstance(microbatch, int):
            microbatch = self._counted.get(place, 0)
        self._counted[place] = microbatch + 1
        return Ids(microbatch + self.offset, place)

    def of_backward(self, output: Any) -> Ids:
        """Ids of the forward that returned this."""
        return self._outputs.pop(id(first_tensor(output)), NO_IDS)

    def computed(self, ids: Ids, result: Any, is_forward: bool) -> None:
        """A compute has returned this, to be sent next, if at all."""
        tensors = tensors_of(result)
        self._results[is_forward] = {id(tensor): ids for tensor in tensors}
        if is_forward and tensors:
            if len(self._outputs) >= _MOST_OUTPUTS:  # of forwards that have no backward, in no pass
                self._outputs.clear()
            self._outputs[id(tensors[0])] = ids

    def of_send(self, tensor: Any, is_forward: bool) -> Ids:
        """Ids of the compute that returned it."""
        return self._results[is_forward].get(id(tensor), NO_IDS) if self.are_receives_known else NO_IDS

    def of_receive(self, tensor: Any, is_forward: bool) -> Ids:
        """Ids of the compute that will use it."""
        if not self.are_receives_known:
            return NO_IDS
        ids = next(self._receives[is_forward], NO_IDS)
        if ids is not NO_IDS:
            ids = Ids(ids.microbatch + self.offset, ids.chunk)
            self._received[id(tensor)] = ids
        return ids

    def used(self, tensors: Any, ids: Ids) -> bool:
        """A compute uses what was received; False: it is not the one that this was taken to be for."""
        if not self._received:
            return True
        expected = self._received.pop(id(first_tensor(tensors)), ids)
        return expected == ids or ids is NO_IDS


def tensors_of(value: Any) -> Sequence[Any]:
    """A schedule's tensors: one, or some in a list, a tuple or a dict; None among them is none.

    Example:
        >>> tensors_of([None, "tensor", ["another"]])
        ['tensor', 'another']
    """
    if value is None:
        return ()
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list | tuple):
        return (value,)
    return [tensor for each in value for tensor in tensors_of(each)]


def first_tensor(value: Any) -> Any:
    """The first of them, or None."""
    tensors = tensors_of(value)
    return tensors[0] if tensors else None
