"""The process that tries clients' grammars, so that one which takes too much time or memory harms nobody else."""

import json
import sys

import msgspec
from llguidance import LLMatcher
from llguidance.gbnf_to_lark import any_to_lark

from livescale.shared.messages.requests import MOST_GRAMMAR
from livescale.shared.model.grammar import GrammarKind, byte_tokenizer, failure_of, grammar_limits
from livescale.shared.process.bounded_answers import answer_all

MEMORY_BYTES = 256 << 20  # in addition to what an idle process has
LONGEST_REASON = 300


class Trial(msgspec.Struct, frozen=True):
    """A grammar to try, with its kind: a JSON schema, a regular expression, and so on."""

    kind: GrammarKind
    source: str


class Tried(msgspec.Struct, frozen=True):
    """The grammar in llguidance's notation, or the reason why it is refused."""

    grammar: str = ""
    refusal: str = ""


class Trials:
    """Tries grammars in a bounded process, one after the other."""

    def __init__(self) -> None:
        # Once, and not as a part of a trial: it takes longer than most of them.
        self._tokenizer = byte_tokenizer()

    def answer(self, data: bytes) -> bytes:
        """Try an encoded Trial, and return the encoded Tried."""
        trial = msgspec.msgpack.decode(data, type=Trial)
        try:
            return msgspec.msgpack.encode(self._try(trial))
        except (ValueError, RecursionError, MemoryError) as error:
            return msgspec.msgpack.encode(Tried(refusal=_short(str(error) or type(error).__name__)))
        except Exception as error:  # noqa: BLE001 the converter of grammars raises what it likes
            return msgspec.msgpack.encode(Tried(refusal=_short(str(error))))

    def _try(self, trial: Trial) -> Tried:
        grammar = translate(trial)
        if len(grammar) > MOST_GRAMMAR:
            return Tried(refusal=f"it has {len(grammar)} characters; {MOST_GRAMMAR} are the most")
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=grammar_limits())
        permitted = b"" if matcher.is_error() else matcher.compute_bitmask()
        if any(permitted):
            matcher.consume_token(_first_of(permitted))  # what is endless, or too much, shows behind its first byte
        if matcher.is_error():
            return Tried(refusal=_short(failure_of(matcher)))
        return Tried(grammar) if any(permitted) else Tried(refusal="no answer can meet it")


def translate(trial: Trial) -> str:
    """The grammar in llguidance's notation. Raises ValueError, or what the converter of EBNF raises."""
    match trial.kind:
        case "json":
            return LLMatcher.grammar_from_json_schema(trial.source)
        case "regex":
            return LLMatcher.grammar_from_regex(trial.source)
        case "choice":
            alternatives: list[str] = json.loads(trial.source)
            return LLMatcher.grammar_from_lark("start: " + " | ".join(map(json.dumps, alternatives)))
        case "grammar":
            return LLMatcher.grammar_from_lark(any_to_lark(trial.source))


def _first_of(bitmask: bytes) -> int:
    """The first token that a mask permits; the lowest bit of a byte is its first token's."""
    place = next(place for place, byte in enumerate(bitmask) if byte)
    lowest = bitmask[place] & -bitmask[place]
    return 8 * place + lowest.bit_length() - 1


def _short(reason: str) -> str:
    return " ".join(reason.split())[:LONGEST_REASON].encode(errors="replace").decode()


if __name__ == "__main__":
    answer_all(Trials().answer, sys.stdin.buffer, sys.stdout.buffer, float(sys.argv[1]), MEMORY_BYTES)
