"""Every message as bytes, against the independent `msgpack` package; and refusals that name the field."""

import importlib
import pkgutil
from collections.abc import Iterator
from functools import cache
from typing import Any

import msgpack
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import livescale.shared.messages
from livescale.shared.bus.codec import Undecodable, decode, encode, is_json
from livescale.shared.messages.layers import Experts, Latent
from livescale.shared.messages.membership import Beat, WorkerReport
from livescale.shared.messages.message import Message
from livescale.shared.messages.parameters import LayerKind, ModelConfig
from livescale.shared.messages.quantization import Quantization
from livescale.shared.subjects import HEARTBEAT


def message_types() -> Iterator[type[Message]]:
    for module in pkgutil.iter_modules(livescale.shared.messages.__path__, "livescale.shared.messages."):
        importlib.import_module(module.name)
    yield from sorted(Message.__subclasses__(), key=lambda kind: kind.__name__)


TYPES = list(message_types())
CHARACTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
SIMPLE: dict[type[msgspec.inspect.Type], st.SearchStrategy[Any]] = {
    msgspec.inspect.BoolType: st.booleans(),
    msgspec.inspect.BytesType: st.binary(max_size=40),
    msgspec.inspect.NoneType: st.none(),
}

NAME = msgspec.inspect.StrType(min_length=1)
FINITE: Any = {"allow_nan": False, "allow_infinity": False}


def values(kind: msgspec.inspect.Type) -> st.SearchStrategy[Any]:
    """Generate values of a field's type."""
    match kind:
        case msgspec.inspect.StrType(min_length=least):
            return st.text(CHARACTERS, min_size=least or 0, max_size=max(least or 0, 12))
        case msgspec.inspect.IntType(ge=least, le=most):
            return st.integers(-(2**63) if least is None else least, 2**64 - 1 if most is None else most)
        case msgspec.inspect.FloatType(ge=least, gt=above, le=most):
            return st.floats(least if above is None else above, most, exclude_min=above is not None, **FINITE)
        case msgspec.inspect.LiteralType(values=literals):
            return st.sampled_from(literals)
        case msgspec.inspect.ListType() | msgspec.inspect.VarTupleType():
            most = 3 if kind.max_length is None else min(kind.max_length, 3)
            many = st.lists(values(kind.item_type), min_size=kind.min_length or 0, max_size=most)
            return many if isinstance(kind, msgspec.inspect.ListType) else many.map(tuple)
        case msgspec.inspect.DictType(key_type=key, value_type=value):
            return st.dictionaries(values(key), values(value), max_size=3)
        case msgspec.inspect.TupleType(item_types=items):
            return st.tuples(*map(values, items))
        case msgspec.inspect.UnionType(types=kinds):
            return st.one_of(*map(values, kinds))
        case msgspec.inspect.StructType(cls=struct):
            return messages(struct)
    return SIMPLE[type(kind)]


@cache
def messages(kind: type[Any]) -> st.SearchStrategy[Any]:
    described = msgspec.inspect.type_info(kind)
    assert isinstance(described, msgspec.inspect.StructType)
    fields = {field.name: values(field.type) for field in described.fields}
    if kind is ModelConfig:
        fields["latent"] = st.none()
        plain = {"layer_kinds": st.just([]), "kinds": st.lists(messages(LayerKind).map(without_experts), max_size=3)}
        one_form = st.sampled_from(["experts", "quantization"]).flatmap(
            lambda absent: st.builds(kind, **{**fields, **plain, absent: st.none()})
        )
        return one_form.flatmap(with_latent).flatmap(with_layer_kinds)
    if kind is Experts:
        fields |= {"count": st.integers(1, 16).map(lambda quarter: 4 * quarter), "chosen": st.just(1)}
        fields |= {"first": st.integers(0, 2), "held": st.integers(0, 2)}
        fields |= {"groups": st.integers(1, 2), "chosen_groups": st.just(1)}
    if kind is Latent:
        even = st.integers(1, 2**15).map(lambda half: 2 * half)
        fields |= {"kv_lora_rank": even, "qk_rope_head_dim": even}
    if kind is Quantization:
        parts = st.dictionaries(values(NAME), st.just(0), max_size=3)
        fields |= {"parts": st.lists(parts, min_size=1, max_size=3), "layers": st.just([])}
    return st.builds(kind, **fields)


def without_experts(kind: LayerKind) -> LayerKind:
    """The same, for a model that has no experts."""
    return replace(kind, experts=False)


def with_latent(config: ModelConfig) -> st.SearchStrategy[ModelConfig]:
    """The same, or with a latent and the one head that it makes."""
    return st.just(config) | messages(Latent).map(
        lambda latent: replace(
            config, latent=latent, head_dim=latent.kept_dim, num_key_value_heads=1, kv_cache_dtype="auto"
        )
    )


def with_layer_kinds(config: ModelConfig) -> st.SearchStrategy[ModelConfig]:
    """The same, or with a few layers, each of one of the kinds that there are."""
    some = st.lists(st.integers(0, max(len(config.kinds), 1) - 1), min_size=1, max_size=3)
    return st.just(config) | some.map(lambda kinds: replace(config, num_hidden_layers=len(kinds), layer_kinds=kinds))


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.__name__)
@settings(max_examples=8, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_both_packages_write_the_same_bytes_and_read_the_same_message(kind: type[Message], data: st.DataObject) -> None:
    message = data.draw(messages(kind))
    ours = encode(message)
    theirs = msgpack.packb(msgspec.to_builtins(message, builtin_types=(bytes,)))
    assert msgpack.unpackb(ours) == msgpack.unpackb(theirs)
    if "Sampling(" not in repr(message):
        # A struct of 16 fields has the longer header from msgspec, also where most of them are left out.
        assert theirs == ours
    assert msgpack.unpackb(ours)["type"] == kind.__name__
    assert decode(kind, msgpack.packb(msgpack.unpackb(ours))) == message
    assert decode(kind, encode(message, json=True), json=True) == message


def test_no_message_class_is_left_out() -> None:
    assert len(TYPES) > 50
    assert all(not kind.__subclasses__() for kind in TYPES)


def test_unknown_fields_are_tolerated() -> None:
    data = msgpack.packb({"type": "Beat", "service": "router", "id": "r", "epoch": 1, "mood": "good"})
    assert decode(Beat, data) == Beat(service="router", id="r", epoch=1)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("epoch", "1", "Expected `int`, got `str` - at `$.epoch`"),
        ("service", "chef", "Invalid enum value 'chef' - at `$.service`"),
        ("type", "Brunch", "Invalid value 'Brunch' - at `$.type`"),
    ],
)
def test_a_wrong_field_is_named(field: str, value: object, words: str) -> None:
    raw = {"type": "Beat", "service": "router", "id": "r", "epoch": 1} | {field: value}
    for data, json in ((msgpack.packb(raw), False), (msgspec.json.encode(raw), True)):
        with pytest.raises(Undecodable) as wrong:
            decode(HEARTBEAT.type, data, json=json)
        assert words in str(wrong.value)


@given(st.binary(max_size=60))
def test_any_bytes_decode_or_are_undecodable(data: bytes) -> None:
    for json in (False, True):
        try:
            decode(WorkerReport, data, json=json)
        except Undecodable:
            continue


def test_nesting_without_end_is_undecodable() -> None:
    with pytest.raises(Undecodable):
        decode(Beat, b'{"more":' + b"[" * 100_000, json=True)


@pytest.mark.parametrize(
    ("data", "headers", "json"),
    [
        (b"", {}, True),
        (b'{"model": "m"}', {}, True),
        (b"\x81\xa4type", {}, False),
        (b"", {"Content-Type": "application/msgpack"}, False),
        (b"[]", {"Content-Type": "application/json; charset=utf-8"}, True),
    ],
)
def test_a_form_is_told_by_its_header_or_its_first_byte(data: bytes, headers: dict[str, str], json: bool) -> None:
    assert is_json(data, headers) is json
