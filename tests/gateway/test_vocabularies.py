"""Workers get the vocabularies of registered models."""

import zlib

import msgspec
import pytest

from livescale.services.worker.instance.vocabulary import fetch_vocabulary
from livescale.shared.bus.contract import Refusal
from tests.gateway.conftest import ServedGateway


async def test_a_worker_gets_the_tokenizer_of_a_registered_model(served: ServedGateway) -> None:
    bus = served.broker.connect()
    entry = served.cluster.models[0]
    vocabulary = await fetch_vocabulary(bus, "tiny", entry.version or "any")
    assert served.tokenizer.get_vocab() == _tokens(zlib.decompress(vocabulary.tokenizer))
    assert vocabulary.ends
    with pytest.raises(Refusal):
        await fetch_vocabulary(bus, "nobody's", "any")
    await bus.close()


def _tokens(tokenizer: bytes) -> dict[str, int]:
    said = msgspec.json.decode(tokenizer)
    return {**said["model"]["vocab"], **{one["content"]: one["id"] for one in said["added_tokens"]}}
