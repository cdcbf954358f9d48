from livescale.shared.model.architectures.phi3 import ARCHITECTURE
from tests.shared.model.architectures.published import described


def test_queries_keys_and_values_lie_one_after_the_other_in_one_matrix() -> None:
    sources = ARCHITECTURE.sources(described("Phi-3-mini-4k-instruct", num_key_value_heads=8))
    q, k, v = (sources[f"model.layers.0.self_attn.{part}_proj.weight"] for part in "qkv")
    assert {one.name for one in (q, k, v)} == {"model.layers.0.self_attn.qkv_proj.weight"}
    assert [(one.start, one.rows) for one in (q, k, v)] == [(0, 3_072), (3_072, 768), (3_840, 768)]


def test_rows_see_the_window_that_the_file_says() -> None:
    assert described("Phi-3-mini-4k-instruct").kind(0).window == 2_047
