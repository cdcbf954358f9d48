from livescale.services.registry.settings import RegistrySettings


def test_what_is_not_said_of_a_model_is_as_the_registry_was_told() -> None:
    spec = RegistrySettings(dtype="float32", layout="panels", max_instances=3, tensor_parallel_size=2).default_spec()
    assert (spec.name, spec.path) == ("", "")
    assert (spec.dtype, spec.layout, spec.min_instances, spec.max_instances) == ("float32", "panels", 1, 3)
    assert (spec.max_model_len, spec.tensor_parallel_size) == (None, 2)
