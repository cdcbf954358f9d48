"""Vocabularies go from gateways to workers, in parts and whole."""

import hashlib
import zlib

import msgspec
import pytest

from livescale.services.worker.instance.grammars import BadVocabulary, fetch_vocabulary
from livescale.shared.bus.contract import Context, Endpoint, Refusal, ServiceInfo
from livescale.shared.messages.vocabulary import PART_BYTES, AskVocabulary, VocabularyPart
from livescale.shared.simulation.local_bus import LocalBroker
from livescale.shared.subjects import VOCABULARY
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


@pytest.mark.parametrize("damage", ["", "digest", "more", "nothing"])
async def test_parts_are_put_together_and_must_fit(damage: str) -> None:
    data = bytes(range(256)) * 3_000
    digest = hashlib.blake2b(data, digest_size=16).hexdigest()

    async def answer(ask: AskVocabulary, context: Context) -> VocabularyPart:
        part = b"" if damage == "nothing" else data[ask.offset : ask.offset + PART_BYTES]
        return VocabularyPart(
            data=part + b"x" if damage == "more" and len(part) < PART_BYTES else part,
            total_bytes=len(data),
            digest="0" * 32 if damage == "digest" else digest,
            ends=[1],
        )

    broker = LocalBroker()
    gateway, worker = broker.connect(), broker.connect()
    await gateway.serve(ServiceInfo("gateway", "gateway-0", "a gateway"), [Endpoint(VOCABULARY, answer)])
    assert len(data) > PART_BYTES
    if damage:
        with pytest.raises(BadVocabulary):
            await fetch_vocabulary(worker, "m", "v")
    else:
        assert (await fetch_vocabulary(worker, "m", "v")).tokenizer == data
    for bus in (gateway, worker):
        await bus.close()
