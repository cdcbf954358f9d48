"""A vocabulary that gateways give in parts is whole, or is not used."""

import hashlib

import pytest

from livescale.services.worker.instance.vocabulary import BadVocabulary, fetch_vocabulary
from livescale.shared.bus.contract import Context, Endpoint, ServiceInfo
from livescale.shared.messages.requests import PART_BYTES, AskVocabulary, VocabularyPart
from livescale.shared.simulation.local_bus import LocalBroker
from livescale.shared.subjects import VOCABULARY


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
