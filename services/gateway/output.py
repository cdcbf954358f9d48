"""From tokens to the text of one choice: it is detokenized step by step, and ended by stop strings. Pure.

Text that has been emitted is never taken back.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from msgspec import Struct
from msgspec.structs import replace

from livescale.services.gateway.progress import Fresh
from livescale.services.gateway.tool_calls.message import CallDelta
from livescale.shared.messages.requests import TokenLogprobs

Decode = Callable[[Sequence[int]], str]
StopReason = Literal["stop", "length", "tool_calls", "repetition"]

REPLACEMENT = "\ufffd"
# An unfinished character is at most 3 bytes of UTF-8, so at most 3 tokens and 3 replacement characters.
UNFINISHED = 3
CONTEXT_TOKENS = 6
LONG_WINDOW = 24


class Detokenizer:
    """Decodes one text token by token. All that `feed` and `flush` return, joined, is the decoded whole.

    A token may hold part of a character, and a decoder may treat the first token of a text specially (a leading space
    is dropped). So a window of tokens is decoded as a whole, and what it has more than the last time is the new text.
    The window starts where the piece before last ended, and hence never inside a character.

    `context` are the tokens before the text (the prompt): decoders look at them, and their own text is not returned. A
    character that they begin is returned once it is whole. Where the text breaks it off, it is returned only if the
    context is `shown`, up to that character.

    Where bytes are not UTF-8, a decoder may make more or fewer replacement characters when it sees them as a whole.
    """

    def __init__(self, decode: Decode, context: Sequence[int] = (), *, shown: bool = False) -> None:
        self._decode = decode
        self._ids = list(context[-CONTEXT_TOKENS:])
        self._read = len(self._ids)  # tokens of the window whose text is out
        before = self._text = decode(self._ids) if self._ids else ""  # of the window
        self._out = certain_part(before)  # text of the window that is out
        # What the context's end becomes if no character comes of it.
        self._broken = "" if shown else before[len(self._out) :]

    def feed(self, token_id: int) -> str:
        """Add a token, and return the text that is certain now. A character that later tokens may still change is held
        back."""
        self._ids.append(token_id)
        text = self._text = self._decode(self._ids)
        if not text.startswith(self._out) and len(self._ids) - self._read > UNFINISHED:
            # Some decoders replace a whole run of bytes for one that is wrong. Emitted text stays as it is.
            self._start_at(self._read, "")
            self._broken = ""
            text = self._text
        certain = certain_part(text)
        if not certain.startswith(self._out):
            return ""
        piece = certain[len(self._out) :]
        self._out = certain
        if piece and certain == text:
            self._start_at(self._read)
        elif len(self._ids) > LONG_WINDOW:
            self._shorten(text)
        return self._of_text(piece)

    def flush(self) -> str:
        """Return what was held back. The text ends here, so an unfinished character becomes a replacement character."""
        if self._text.startswith(self._out):
            return self._of_text(self._text[len(self._out) :])
        return self._decode(self._ids[self._read :])

    def _of_text(self, piece: str) -> str:
        """The piece without what the context had broken off already."""
        if piece:
            piece, self._broken = piece.removeprefix(self._broken), ""
        return piece

    def _start_at(self, start: int, out: str | None = None) -> None:
        """Forget the tokens before `start`. By default the text of all others is out."""
        del self._ids[:start]
        self._read = len(self._ids) if out is None else 0
        self._text = self._decode(self._ids)
        self._out = self._text if out is None else out

    def _shorten(self, text: str) -> None:
        """Cut the window where that changes nothing: bytes that never make a character would let it grow for ever.

        No unfinished character reaches back over more than `UNFINISHED` tokens, so a cut before them is safe.
        """
        last = len(self._ids) - UNFINISHED - 1
        for cut in range(last, last - UNFINISHED - 1, -1):
            head = self._decode(self._ids[:cut])
            if self._out.startswith(head) and head + self._decode(self._ids[cut:]) == text:
                self._start_at(cut, self._out[len(head) :])
                return


def certain_part(text: str) -> str:
    """`text` without the end that an unfinished character may be."""
    if not text.endswith(REPLACEMENT):
        return text
    end = len(text)
    while end > max(0, len(text) - UNFINISHED) and text[end - 1] == REPLACEMENT:
        end -= 1
    return text[:end]


class Scanned(Struct, frozen=True):
    """The result of a scan: `text` is safe to emit. `stop` is the stop string that ended the text, None while it goes
    on."""

    text: str
    stop: str | None = None


class StopScanner:
    """Looks for the stop string that is complete first; of several, for the one that began first.

    So the result does not depend on how the text was cut into pieces.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""

    def feed(self, piece: str) -> Scanned:
        """Scan the next piece. Text that may turn out to begin a stop string is held back. Nothing may be fed after a
        stop."""
        if not self._stops:
            return Scanned(piece)
        text = self._held + piece
        found = min(
            ((start + len(stop), start, stop) for stop in self._stops if (start := text.find(stop)) >= 0), default=None
        )
        if found is not None:
            _, start, stop = found
            self._held = ""
            return Scanned(text[:start], stop)
        keep = self._begun(text)
        self._held = text[len(text) - keep :]
        return Scanned(text[: len(text) - keep])

    def flush(self) -> str:
        """Return what was held back: the text is over, so it began no stop string."""
        held, self._held = self._held, ""
        return held

    def _begun(self, text: str) -> int:
        """The length of the longest end of `text` that may begin a stop string."""
        return max((_overlap(text, stop) for stop in self._stops), default=0)


def _overlap(text: str, stop: str) -> int:
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0


class TextPiece(Struct, frozen=True):
    """The next piece for a client; the one with a `finish_reason` is the last. `text` may lag behind `token_ids`, as
    text is held back. `stop_reason` is the stop string or stop token of the client's that ended the text. `logprobs`
    has one for each token, where they are asked for: first for those of the prompt that are `echoed`. `reasoning` and
    `calls` are told apart from the text where the model's format of them is known."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: StopReason | None = None
    stop_reason: str | int | None = None
    logprobs: tuple[TokenLogprobs | None, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    echoed: tuple[int, ...] = ()
    reasoning: str = ""
    calls: tuple[CallDelta, ...] = ()


@dataclass(frozen=True)
class TextEnds:
    """What ends a text, none of it before `min_tokens`: stop strings and tokens, some `named` by the client. With
    `kept` they are part of the text."""

    strings: Sequence[str] = ()
    tokens: Collection[int] = ()
    named: Collection[int] = ()
    kept: bool = False
    min_tokens: int = 0


NO_ENDS = TextEnds()


@dataclass
class WholeChoice:
    """One choice of a whole answer, while its pieces come together."""

    prompt: list[int]
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    echoed: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs | None] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    reasonings: list[str] = field(default_factory=list)
    calls: list[list[CallDelta]] = field(default_factory=list)
    finish_reason: StopReason = "length"
    stop_reason: int | str | None = None

    def add(self, piece: TextPiece) -> None:
        self.texts.append(piece.text)
        self.token_ids.extend(piece.token_ids)
        self.echoed.extend(piece.echoed)
        self.logprobs.extend(piece.logprobs)
        self.prompt_logprobs.extend(piece.prompt_logprobs)
        self.reasonings.append(piece.reasoning)
        for call in piece.calls:
            if call.id is not None:
                self.calls.append([])
            self.calls[-1].append(call)
        self.finish_reason = piece.finish_reason or self.finish_reason
        self.stop_reason = piece.stop_reason

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def reasoning(self) -> str:
        return "".join(self.reasonings)

    @property
    def mean_logprob(self) -> float:
        """The mean log-probability of the choice's tokens, by which `best_of` ranks."""
        generated = [told.chosen for told in self.logprobs[len(self.echoed) :] if told is not None]
        return sum(generated) / max(1, len(generated))


class Output(Protocol):
    """What turns the tokens of one request into pieces for its client. `reasoning_tokens` counts those of its
    reasoning, None where that is not told apart."""

    @property
    def reasoning_tokens(self) -> int | None: ...

    def feed(self, fresh: Fresh) -> TextPiece:
        """Return the next piece; one with a reason where the request is over."""


class TextOutput:
    """Turns the tokens of one request into pieces of text. `shown` says that the client is shown the prompt before
    them."""

    reasoning_tokens: int | None = None

    def __init__(self, decode: Decode, prompt: Sequence[int], ends: TextEnds = NO_ENDS, *, shown: bool = False) -> None:
        self._detokenizer = Detokenizer(decode, prompt, shown=shown)
        self._scanner = StopScanner(ends.strings)
        self._ends = ends
        self.tokens = 0

    def feed(self, fresh: Fresh) -> TextPiece:
        """Return the next piece. Its reason is "stop" as soon as a stop string is complete, whatever comes after it."""
        piece = self._piece(fresh)
        return replace(piece, prompt_logprobs=fresh.prompt_logprobs) if fresh.prompt_logprobs else piece

    def _piece(self, fresh: Fresh) -> TextPiece:
        text = ""
        stop: int | None = None
        for position, token_id in enumerate(fresh.token_ids, start=1):
            self.tokens += 1
            if position == len(fresh.token_ids) and fresh.finish_reason == "stop" and token_id in self._ends.tokens:
                stop = token_id if token_id in self._ends.named else None
                if not self._ends.kept:
                    break
            scanned = self._scan(self._detokenizer.feed(token_id))
            text += scanned.text
            if scanned.stop is not None:
                return TextPiece(text, fresh.token_ids[:position], "stop", scanned.stop, fresh.logprobs[:position])
        if fresh.finish_reason is None:
            return TextPiece(text, fresh.token_ids, logprobs=fresh.logprobs)
        reason: StopReason = "stop" if fresh.finish_reason == "stop" else "length"
        return TextPiece(text + self._rest(), fresh.token_ids, reason, stop, fresh.logprobs)

    def _scan(self, text: str) -> Scanned:
        if self.tokens <= self._ends.min_tokens:
            return Scanned(text)
        scanned = self._scanner.feed(text)
        return Scanned(scanned.text + scanned.stop, scanned.stop) if self._ends.kept and scanned.stop else scanned

    def _rest(self) -> str:
        scanned = self._scan(self._detokenizer.flush())
        return scanned.text if scanned.stop is not None else scanned.text + self._scanner.flush()
