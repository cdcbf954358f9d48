import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from livescale.services.host.cache import CacheFull, Held, HostCache
from livescale.shared.messages.membership import Holding
from livescale.shared.messages.parameters import Manifest, ModelConfig

CONFIG = ModelConfig(
    family="llama",
    vocab_size=10,
    hidden_size=4,
    intermediate_size=8,
    num_hidden_layers=1,
    num_attention_heads=1,
    num_key_value_heads=1,
    head_dim=4,
    rms_norm_eps=1e-5,
    rope_theta=1e4,
    max_position_embeddings=16,
)
MANIFEST = Manifest(version="v1", config=CONFIG, dtype="bfloat16", blocks=[])


def held(model: str = "m", size_bytes: int = 60) -> Held:
    return Held(model=model, path="/p", dtype="bfloat16", size_bytes=size_bytes, total=3)


def test_an_empty_cache_holds_nothing() -> None:
    cache = HostCache(100)
    assert (cache.used_bytes, cache.items(), cache.get(0), cache.find("v1")) == (0, [], None, None)


def test_memory_is_set_aside_when_a_model_is_admitted_not_when_it_is_read() -> None:
    cache = HostCache(100)
    cache.admit(held())
    assert cache.used_bytes == 60
    with pytest.raises(CacheFull):
        cache.admit(held("other", 41))
    cache.admit(held("other", 40))
    assert cache.used_bytes == 100


def test_a_refusal_says_what_is_needed_what_is_left_and_what_to_do() -> None:
    cache = HostCache(64 << 20)
    cache.admit(held("first", 60 << 20))
    with pytest.raises(CacheFull) as caught:
        cache.admit(held("second", 5 << 20))
    message = str(caught.value)
    for said in ("cache_bytes", "'second'", "5.0 MiB", "4.0 MiB", "64.0 MiB", "--cache-bytes"):
        assert said in message


def test_two_versions_of_a_model_each_take_their_memory() -> None:
    cache = HostCache(100)
    first = cache.admit(held(size_bytes=40))
    second = cache.admit(replace(held(size_bytes=50), path="/q", manifest=MANIFEST))
    assert [number for number, _ in cache.items()] == [first, second]
    assert (cache.numbers("m", ""), cache.numbers("m", "v1")) == ([first], [second])
    with pytest.raises(CacheFull):
        cache.admit(held(size_bytes=11))
    cache.drop(first)
    assert cache.used_bytes == 50


def test_holdings_grow_with_every_block_in_any_order_and_have_a_version_at_the_end() -> None:
    cache = HostCache(100)
    number = cache.admit(held())
    cache.block_ready(number, 2)
    cache.block_ready(number, 0)
    [(_, half)] = cache.items()
    assert half.holding(sending=False) == Holding(model="m", version="", ready=[0, 2], total=3, size_bytes=60)
    assert cache.find("v1") is None
    cache.block_ready(number, 1)
    whole = cache.whole(number, MANIFEST)
    assert whole.is_whole
    holding = Holding(model="m", version="v1", ready=[0, 1, 2], total=3, size_bytes=60, sending=True)
    assert whole.holding(sending=True) == holding
    assert cache.find("v1") == number


def test_a_whole_copy_is_found_before_one_on_its_way() -> None:
    cache = HostCache(200)
    cache.admit(replace(held("a"), manifest=MANIFEST))
    whole = cache.admit(replace(held("b"), ready=frozenset(range(3)), manifest=MANIFEST))
    assert cache.find("v1") == whole


def test_a_dropped_model_gives_its_memory_back() -> None:
    cache = HostCache(100)
    number = cache.admit(held())
    cache.drop(number)
    assert (cache.used_bytes, cache.get(number)) == (0, None)


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 80), st.booleans())))
def test_the_limit_is_never_exceeded(steps: list[tuple[str, int, bool]]) -> None:
    cache = HostCache(100)
    for model, size, drop in steps:
        before = cache.used_bytes
        if drop and cache.items():
            cache.drop(cache.items()[0][0])
            continue
        try:
            cache.admit(held(model, size))
        except CacheFull:
            assert cache.used_bytes == before
        assert cache.used_bytes <= 100
