"""API keys: how they are given, what is refused, and that none is ever shown."""

from pathlib import Path

import pytest

from livescale.services.gateway.keys import ApiKey, BadKeys, Keyring, parse_key, read_keys

FILE = """
- {name: alice, key: alice-secret, requests-per-minute: 60, tokens-per-minute: 1000, max-concurrent: 2}
- {name: ops, key: ops-secret, admin: true}
"""


def written(path: Path, text: str, mode: int = 0o600) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize(
    ("text", "name", "key", "admin"),
    [
        ("sesame", "default", "sesame", True),
        ("alice=sesame", "alice", "sesame", False),
        ("admin=sesame", "admin", "sesame", True),
        ("c2VzYW1l==", "default", "c2VzYW1l==", True),
        ("alice=c2Vz=", "alice", "c2Vz=", False),
        ("sk-1=2", "sk-1", "2", False),
    ],
)
def test_keys_are_given_bare_or_by_name(text: str, name: str, key: str, admin: bool) -> None:
    parsed = parse_key(text)
    assert (parsed.name, parsed.key, parsed.admin) == (name, key, admin)


def test_keys_of_flag_and_file_are_known_and_others_are_not(tmp_path: Path) -> None:
    keys = read_keys(["bob=bob-secret"], written(tmp_path / "keys.yaml", FILE))
    alice, ops = keys.find(b"alice-secret"), keys.find(b"ops-secret")
    assert alice is not None
    assert ops is not None
    assert (alice.name, alice.is_admin, ops.is_admin) == ("alice", False, True)
    assert dict(alice.quota.headers(0.0))["x-ratelimit-limit-requests"] == "60"
    assert keys.find(b"bob-secret") is not None
    for wrong in (b"", b"alice", b"alice-secret ", b"alice=alice-secret", b"\xff\x00"):
        assert keys.find(wrong) is None


def test_every_key_is_compared_whichever_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append(other)
        return one == other

    keys = Keyring(ApiKey(name=f"k{index}", key=f"secret-{index}") for index in range(5))
    monkeypatch.setattr("livescale.services.gateway.keys.hmac.compare_digest", compare)
    for presented in (b"secret-0", b"secret-4", b"other"):
        compared.clear()
        keys.find(presented)
        assert len(set(compared)) == 5
        assert {len(each) for each in compared} == {32}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- {name: a, key: sec-ret, limit: 5}", "unknown field `limit` - at `$[0]`"),
        ("- {name: a}", "missing required field `key`"),
        ("- {name: a, key: sec-ret, requests-per-minute: 0}", "Expected `int` >= 1 - at `$[0].requests-per-minute`"),
        ("- {name: 'a b', key: sec-ret}", "`$[0].name`"),
        ("- {name: a, key: 'sec-ret two'}", "the key of 'a' must be printable ASCII"),
        ("- {name: a, key: ''}", "the key of 'a' must be printable ASCII"),
        ("- {name: a, key: sec-ret}\n- {name: a, key: x}", "two keys named 'a'"),
        ("- {name: a, key: sec-ret}\n- {name: b, key: sec-ret}", "'a' and 'b' have the same key"),
        ("- {name: a, key: sec-ret", "is not YAML, line 1"),
        ("sec-ret", "Expected `array`, got `str`"),
    ],
)
def test_a_mistake_in_the_file_is_named_without_the_key(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(BadKeys) as caught:
        read_keys([], written(tmp_path / "keys.yaml", text))
    assert said in str(caught.value)
    assert "sec-ret" not in str(caught.value)


def test_a_file_that_everybody_can_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadKeys, match="chmod o-r"):
        read_keys([], written(tmp_path / "keys.yaml", FILE, 0o644))
    assert read_keys([], written(tmp_path / "keys.yaml", FILE, 0o640))


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadKeys, match=r"nowhere\.yaml: No such file"):
        read_keys([], str(tmp_path / "nowhere.yaml"))


def test_no_key_shows_itself() -> None:
    assert "sesame" not in repr(parse_key("alice=sesame"))
