"""Batches as the rank that leads tells them to the others. Pure."""

from dataclasses import replace
from typing import Any

import msgspec
from msgspec import structs

from livescale.services.worker.scheduling.batch import NO_BYTES, Batch, ScheduledChunk


def encode_batch(batch: Batch) -> bytes:
    """Encode a batch without activations and pixels, of which the ranks get what they need as they run it, and without
    KV, of which each has its own.
    """
    imports = tuple(replace(one, data=NO_BYTES) for one in batch.imports)
    told = structs.replace(batch, chunks=tuple(map(_without_activation, batch.chunks)), imports=imports)
    return msgspec.msgpack.encode(told, enc_hook=_encode_range)


def decode_batch(data: bytes) -> Batch:
    """Decode a batch. Raises ValueError for bytes that are none."""
    return msgspec.msgpack.decode(data, type=Batch, dec_hook=_decode_range)


def _without_activation(piece: ScheduledChunk) -> ScheduledChunk:
    sampling = piece.sampling
    if sampling is not None and sampling.past is not None:  # which only the rank that chooses needs
        params = structs.replace(sampling.params, grammar="")
        piece = structs.replace(piece, sampling=structs.replace(sampling, params=params, past=None))
    if piece.pixels:
        piece = structs.replace(piece, pixels=b"")
    return piece if piece.entry is None else structs.replace(piece, entry=replace(piece.entry, activation=NO_BYTES))


def _encode_range(value: Any) -> list[int]:  # noqa: ANN401  # msgspec's hooks take anything
    if not isinstance(value, range):
        raise NotImplementedError(f"a batch has no {type(value).__name__}")
    return [value.start, value.stop]


def _decode_range(kind: type[Any], value: Any) -> range:  # noqa: ANN401
    if kind is not range:
        raise NotImplementedError(f"a batch has no {kind.__name__}")
    start, stop = msgspec.convert(value, tuple[int, int])
    return range(start, stop)
