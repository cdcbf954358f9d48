"""A request for a model says to the registry what its client said, and nothing else."""

import msgspec

from livescale.services.gateway.bodies import BoundsRequest, ModelRequest
from livescale.services.gateway.parse import parse_body
from livescale.shared.messages.model_spec import ModelSpec, ScalingBounds


def test_a_model_is_registered_with_what_was_said_of_it() -> None:
    body = parse_body(
        b'{"type": "ModelSpec", "name": "m", "min_instances": 0, "bounds": {"prefill_lo": 0}}', ModelRequest
    )
    said = body.register()
    assert said.named == ["bounds.prefill_lo", "min_instances", "name"]
    assert (said.spec.name, said.spec.min_instances, said.spec.bounds.prefill_lo) == ("m", 0, 0.0)


def test_an_entry_of_the_list_can_be_sent_back() -> None:
    spec = ModelSpec(name="m", path="/p", max_instances=2, layout="panels")
    said = parse_body(msgspec.json.encode(spec), ModelRequest).register()
    assert said.spec == spec
    assert {"path", "max_instances", "layout", "bounds.decode_hi"} <= set(said.named or [])


def test_a_request_for_a_model_has_every_field_of_its_declaration() -> None:
    # Adapters are loaded by an endpoint of their own.
    assert (*ModelRequest.__struct_fields__, "base", "base_path") == ModelSpec.__struct_fields__
    assert BoundsRequest.__struct_fields__ == ScalingBounds.__struct_fields__
