"""What one model on one worker has room for, and therefore which requests can never run there. Pure."""

from dataclasses import dataclass

from livescale.services.worker.scheduling.batch import MAX_BATCH_ROWS, PREFILL_CHUNK
from livescale.shared.messages.images import Images
from livescale.shared.messages.requests import Submit

SLO_SHARE = 0.925  # of an SLO is what steps are to take: some rows take longer than others


@dataclass(frozen=True)
class SchedulerLimits:
    """The sizes that scheduling keeps to, for one model on one worker.

    There are `kv_blocks` blocks of `kv_block_tokens` tokens. A request has at most `max_model_len` tokens, prompt and
    output together. With prompts beside them, decodes shall keep to `tbt_slo` seconds, or where that is None take at
    most `tbt_ratio` times as long as alone.

    `host_kv_blocks` more blocks in host memory keep prompts. Conversations are kept for `context_seconds`, in at most
    `context_blocks` blocks of both kinds. A model that `pools` makes vectors and no tokens, and one that `encodes` runs
    a prompt in one piece. One of `images` takes nothing else. Raises ValueError where a step has no room for all
    requests and one chunk.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    vocab_size: int
    kv_blocks: int
    kv_block_tokens: int
    max_num_waiting: int = 1024
    tbt_ratio: float = 1.85
    tbt_slo: float | None = None
    enable_prefix_caching: bool = True
    host_kv_blocks: int = 0
    context_blocks: int = 0
    context_seconds: float = 1800.0
    pools: bool = False
    encodes: bool = False
    images: Images | None = None

    def __post_init__(self) -> None:
        least = self.max_num_seqs + PREFILL_CHUNK
        if not least <= self.max_num_batched_tokens <= MAX_BATCH_ROWS:
            raise ValueError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens}, must be {least} (max_num_seqs and one chunk"
                f" of {PREFILL_CHUNK}, or prompts would starve) to {MAX_BATCH_ROWS}"
            )

    @property
    def keeps_prefixes(self) -> bool:
        """Whether KV of prompts is kept for those that begin alike. Where rows see each other it is of no use."""
        return self.enable_prefix_caching and not self.encodes

    def beside_seconds(self, alone: float) -> float:
        """How much longer decodes may take for the prompts beside them, which take `alone` seconds without any."""
        longest = self.tbt_ratio * alone if self.tbt_slo is None else SLO_SHARE * self.tbt_slo
        return max(0.0, longest - alone)

    def blocks(self, tokens: int) -> int:
        """The number of KV blocks that hold so many tokens."""
        return -(-tokens // self.kv_block_tokens)

    def most_blocks(self, request: Submit) -> int:
        """The number of KV blocks for the prompt and everything that may follow it."""
        return self.blocks(len(request.prompt) + request.max_tokens)

    def why_never(self, request: Submit) -> str | None:
        """Say why the request can never run here; None where it can."""
        total = len(request.prompt) + (0 if self.pools else request.max_tokens)
        if not request.prompt:
            return "prompt is empty; give at least one token"
        if request.sampling.pools != self.pools:
            made, other = ("vectors", "tokens") if self.pools else ("tokens", "vectors")
            return f"this model makes {made}, and the request asks for {other}"
        if len(request.generated) >= request.max_tokens:
            return (
                f"max_tokens is {request.max_tokens} and {len(request.generated)} are generated already: nothing is "
                "left to do"
            )
        if total > self.max_model_len:
            return f"prompt and max_tokens are {total} tokens, max_model_len is {self.max_model_len}"
        if self.encodes and total > self.max_num_batched_tokens:
            return (
                f"prompt is {total} tokens, and one step, in which it has to run, has at most "
                f"{self.max_num_batched_tokens}; shorten it, or raise --max-num-batched-tokens"
            )
        if self.most_blocks(request) > self.kv_blocks:
            room = self.kv_blocks * self.kv_block_tokens
            return f"prompt and max_tokens are {total} tokens, the whole KV cache holds {room}"
        named = request.sampling.named_tokens
        outside = _outside(self.vocab_size, request.prompt, request.generated, request.stop_token_ids, named)
        if outside is not None:
            return f"token id {outside} is not in the vocabulary of {self.vocab_size}"
        return self._why_no_image(request)

    def _why_no_image(self, request: Submit) -> str | None:
        """Say what is wrong with a request's pixels, or with their absence."""
        rows, size_bytes = (0, 0) if self.images is None else (self.images.rows, self.images.size_bytes)
        if len(request.pixels) != size_bytes:
            return f"pixels: they have {len(request.pixels)} bytes, and this model takes {size_bytes}"
        if rows not in (0, len(request.prompt)):
            return f"prompt: it has {len(request.prompt)} tokens, and an image has {rows}"
        return None


def _outside(vocab_size: int, *lists: list[int]) -> int | None:
    """The first token id that the vocabulary does not have."""
    return next((token for tokens in lists for token in tokens if not 0 <= token < vocab_size), None)
