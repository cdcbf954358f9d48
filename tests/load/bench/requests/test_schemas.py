"""The schemas of the bench are unlike each other, and answers by them are bounded."""

import random

import jsonschema_rs
import msgspec
import numpy as np
from llguidance import LLMatcher

from livescale.load.bench.requests.schemas import make_schema
from livescale.services.gateway.constraints import schema_text
from livescale.shared.model.grammar import byte_tokenizer, grammar_limits

SCHEMAS = [make_schema(number) for number in range(50)]
END = 256
MOST_BYTES = 2_000


def test_schemas_are_unlike_and_always_the_same() -> None:
    kinds = {msgspec.json.encode(schema["properties"]) for schema in SCHEMAS}
    assert len(kinds) == len(SCHEMAS)
    assert make_schema(7) == SCHEMAS[7]


def test_bytes_that_are_drawn_by_a_schema_end_and_are_valid() -> None:
    tokenizer = byte_tokenizer()
    for number, schema in enumerate(SCHEMAS[:12]):
        grammar = LLMatcher.grammar_from_json_schema(schema_text(schema))
        matcher, chance = LLMatcher(tokenizer, grammar, limits=grammar_limits()), random.Random(number)
        answer = list[int]()
        while END not in answer:
            bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")[: END + 1]
            answer.append(int(chance.choice(np.flatnonzero(bits))))
            assert matcher.consume_token(answer[-1])
            assert len(answer) < MOST_BYTES
        jsonschema_rs.validate(schema, msgspec.json.decode(bytes(answer[:-1])))
