"""Tokens to text, a few at a time: what has been emitted is never taken back.

A token may hold part of a character, and a decoder may treat the first token of a text specially (a leading space
is dropped). So a window of tokens is decoded twice, without and with the new ones, and the difference is the new
text. The window starts where the piece before last ended, hence never inside a character.
"""

from collections.abc import Callable, Sequence

Decode = Callable[[Sequence[int]], str]

REPLACEMENT = "\ufffd"
# An unfinished character is at most 3 bytes of UTF-8, which decode to at most as many replacement characters.
UNFINISHED = 3
CONTEXT_TOKENS = 6
LONG_WINDOW = 24


class Detokenizer:
    """Incremental decoding of one text. All that `feed` and `flush` return, joined, is the decoded whole.

    `context` are the tokens before the text (the prompt): decoders look at them, their own text is not returned.
    """

    def __init__(self, decode: Decode, context: Sequence[int] = ()) -> None:
        self._decode = decode
        self._ids = list(context[-CONTEXT_TOKENS:])
        self._read = len(self._ids)  # tokens before it are emitted
        self._emitted = len(_certain(decode(self._ids))) if self._ids else 0  # characters of the window

    def feed(self, token_ids: Sequence[int]) -> str:
        """The text that is certain now; a character that later tokens may still change is held back."""
        self._ids.extend(token_ids)
        text = self._decode(self._ids)
        certain = _certain(text)
        piece = certain[self._emitted :]
        self._emitted = max(self._emitted, len(certain))
        if len(certain) == len(text) and piece:
            self._start_window_at(self._read)
        elif len(self._ids) > LONG_WINDOW:
            self._shorten(text)
        return piece

    def flush(self) -> str:
        """What was held back: the text ends here, so an unfinished character is a replacement character."""
        text = self._decode(self._ids)
        piece = text[self._emitted :]
        self._emitted = len(text)
        return piece

    def _start_window_at(self, start: int) -> None:
        del self._ids[:start]
        self._read = len(self._ids)
        self._emitted = len(self._decode(self._ids))

    def _shorten(self, text: str) -> None:
        """Bytes that never make a character would let the window grow for ever: cut where nothing changes.

        No unfinished character reaches back over more than `UNFINISHED` tokens, so a cut before them is safe.
        """
        last = len(self._ids) - UNFINISHED - 1
        for cut in range(last, last - UNFINISHED - 1, -1):
            head = self._decode(self._ids[:cut])
            if len(head) <= self._emitted and head + self._decode(self._ids[cut:]) == text:
                del self._ids[:cut]
                self._emitted -= len(head)
                self._read = 0
                return


def _certain(text: str) -> str:
    """`text` without the end that an unfinished character may be."""
    end = len(text)
    while end > max(0, len(text) - UNFINISHED) and text[end - 1] == REPLACEMENT:
        end -= 1
    return text[:end]
