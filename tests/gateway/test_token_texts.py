from tokenizers import Tokenizer

from livescale.services.gateway.token_texts import text_of
from tests.checkpoints import tiny_checkpoint


class CountedTokenizer:
    """A checkpoint's tokenizer, and how often it decoded."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.decodes = 0

    def decode(self, token_ids: tuple[int, ...], *, skip_special_tokens: bool) -> str:
        self.decodes += 1
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)
        return text


def test_tokens_are_decoded_as_the_tokenizer_does_and_single_ones_only_once() -> None:
    tokenizer = Tokenizer.from_file(str(tiny_checkpoint("qwen2") / "tokenizer.json"))
    counted = CountedTokenizer(tokenizer)
    decode = text_of(counted)  # type: ignore[arg-type]
    special = next(id for id, token in tokenizer.get_added_tokens_decoder().items() if token.special)
    asked = [(), (66,), (special,), (66, special, 67)]
    for _ in range(2):
        for token_ids in asked:
            for skip in (True, False):
                assert decode(token_ids, skip) == tokenizer.decode(token_ids, skip_special_tokens=skip)
    assert counted.decodes == 2 * len(asked) + 2 * 2  # the second time only those of none and of several tokens
