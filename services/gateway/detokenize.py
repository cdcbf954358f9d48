"""Tokens to text, one at a time: what has been emitted is never taken back.

A token may hold part of a character, and a decoder may treat the first token of a text specially (a leading space
is dropped). So a window of tokens is decoded as a whole, and what it has more than the last time is the new text.
The window starts where the piece before last ended, hence never inside a character.
"""

from collections.abc import Callable, Sequence

Decode = Callable[[Sequence[int]], str]

REPLACEMENT = "\ufffd"
# An unfinished character is at most 3 bytes of UTF-8: as many tokens, and as many replacement characters.
UNFINISHED = 3
CONTEXT_TOKENS = 6
LONG_WINDOW = 24


class Detokenizer:
    """Incremental decoding of one text. All that `feed` and `flush` return, joined, is the decoded whole.

    `context` are the tokens before the text (the prompt): decoders look at them, their own text is not returned.
    Of bytes that are no UTF-8 a decoder may make more or fewer replacement characters when it sees them as a whole.
    """

    def __init__(self, decode: Decode, context: Sequence[int] = ()) -> None:
        self._decode = decode
        self._ids = list(context[-CONTEXT_TOKENS:])
        self._read = len(self._ids)  # tokens of the window whose text is out
        self._out = _certain(decode(self._ids)) if self._ids else ""  # text of the window that is out

    def feed(self, token_id: int) -> str:
        """The text that is certain now; a character that later tokens may still change is held back."""
        self._ids.append(token_id)
        text = self._decode(self._ids)
        if not text.startswith(self._out) and len(self._ids) - self._read > UNFINISHED:
            # Some decoders give up a whole run of bytes for one that is wrong; what is out stays out.
            self._start_at(self._read, "")
            text = self._decode(self._ids)
        certain = _certain(text)
        if not certain.startswith(self._out):
            return ""
        piece = certain[len(self._out) :]
        self._out = certain
        if piece and certain == text:
            self._start_at(self._read)
        elif len(self._ids) > LONG_WINDOW:
            self._shorten(text)
        return piece

    def flush(self) -> str:
        """What was held back: the text ends here, so an unfinished character is a replacement character."""
        text = self._decode(self._ids)
        return text[len(self._out) :] if text.startswith(self._out) else self._decode(self._ids[self._read :])

    def _start_at(self, start: int, out: str | None = None) -> None:
        """Forget the tokens before `start`. By default the text of all others is out."""
        del self._ids[:start]
        self._read = len(self._ids) if out is None else 0
        self._out = self._decode(self._ids) if out is None else out

    def _shorten(self, text: str) -> None:
        """Bytes that never make a character would let the window grow for ever: cut where nothing changes.

        No unfinished character reaches back over more than `UNFINISHED` tokens, so a cut before them is safe.
        """
        last = len(self._ids) - UNFINISHED - 1
        for cut in range(last, last - UNFINISHED - 1, -1):
            head = self._decode(self._ids[:cut])
            if self._out.startswith(head) and head + self._decode(self._ids[cut:]) == text:
                self._start_at(cut, self._out[len(head) :])
                return


def _certain(text: str) -> str:
    """`text` without the end that an unfinished character may be."""
    end = len(text)
    while end > max(0, len(text) - UNFINISHED) and text[end - 1] == REPLACEMENT:
        end -= 1
    return text[:end]
