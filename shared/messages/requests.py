"""A request's life: gateway -> router -> worker, and tokens back to the gateway."""

from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from livescale.shared.messages.images import MOST_IMAGE_BYTES
from livescale.shared.messages.message import Amount, Count, Message, Name, Positive, TokenId, TraceParent

FinishReason = Literal["stop", "length", "cancelled", "deadline", "error"]
HttpError = Annotated[int, Meta(ge=400, le=599)]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Priority = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
MOST_LOGPROBS = 20  # of one token
MOST_GRAMMAR = 131_072  # characters
PART_BYTES = 512 << 10
MOST_VOCABULARY_BYTES = 64 << 20  # compressed
Digest = Annotated[str, Meta(min_length=32, max_length=32)]
# What a priority of one less is worth: more than an instance has at once by default, so of these the lower always goes
# first.
PRIORITY_ARRIVALS = 256


class Sampling(Message, frozen=True, kw_only=True, omit_defaults=True):
    """How the next token is chosen. `temperature` 0 is greedy; `top_k` 0, `top_p` 1 and `min_p` 0 are off.

    The gateway always fills `seed`, so that any worker that continues a request draws the same sequence.
    `repetition_penalty` counts the tokens of the prompt as well, the other penalties what was generated. `bad_words`
    are sequences of tokens that may not be completed; with `allowed_token_ids` no other token is chosen.
    `logprobs`: tell how likely each token was, and so many of the likeliest, or those of `logprob_token_ids` in their
    place.
    `grammar`: of the answer, in llguidance's notation (Lark, or JSON); only tokens that it permits are chosen, and an
    end-of-sequence token once it is complete. Empty permits all.
    `pools`: make a vector of the prompt in place of a token, as the model's `pooling` says. It counts as the request's
    only token. `second`: where the second of two texts begins in the prompt, for models that tell them apart; 0 is
    nowhere.
    """

    temperature: Amount = 0.0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    top_k: TokenId = 0
    seed: Seed = 0
    min_p: Annotated[float, Meta(ge=0, le=1)] = 0.0
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    repetition_penalty: Annotated[float, Meta(gt=0, le=100)] = 1.0
    logit_bias: list[tuple[TokenId, Annotated[float, Meta(ge=-100, le=100)]]] = []
    bad_words: list[Annotated[list[TokenId], Meta(min_length=1)]] = []
    allowed_token_ids: list[TokenId] = []
    logprobs: Annotated[int, Meta(ge=0, le=MOST_LOGPROBS)] | None = None
    logprob_token_ids: Annotated[list[TokenId], Meta(max_length=MOST_LOGPROBS)] = []
    grammar: Annotated[str, Meta(max_length=MOST_GRAMMAR)] = ""
    pools: bool = False
    second: Count = 0

    @property
    def changes_logits(self) -> bool:
        """Whether logits are changed before a token is drawn by temperature, top_k, top_p and min_p."""
        return bool(
            self.presence_penalty
            or self.frequency_penalty
            or self.repetition_penalty != 1.0
            or self.logit_bias
            or self.bad_words
            or self.allowed_token_ids
        )

    @property
    def needs_past(self) -> bool:
        """Whether the choice of a token depends on those before it."""
        return bool(self.grammar) or self.changes_logits

    @property
    def named_tokens(self) -> list[int]:
        """All token ids that the sampling names, which the model's vocabulary must have."""
        words = (token for word in self.bad_words for token in word)
        biased = (token for token, _ in self.logit_bias)
        return [*biased, *self.allowed_token_ids, *self.logprob_token_ids, *words]


class TokenLogprobs(Struct, frozen=True, array_like=True):
    """The log-probability of a token, and of others in its place: the likeliest, likeliest first, or those that were
    asked for. They are as the model gave them: before penalties, temperature and whatever else decides which token is
    chosen. `rank` is its own place among all, from 1 on; it is told of tokens of prompts. `pooled` is the vector that a
    request has in place of a token, in float32.
    """

    chosen: float
    top: list[tuple[TokenId, float]] = []
    rank: Count = 0
    pooled: bytes = b""


class PromptLogprobs(Message, frozen=True, kw_only=True):
    """Tell how likely each token of the prompt was, but the first, and `top` of the likeliest. `told` are those of the
    tokens from the second on that other workers have computed."""

    top: Annotated[int, Meta(ge=0, le=MOST_LOGPROBS)] = 0
    told: list[TokenLogprobs] = []


class AdapterUse(Message, frozen=True, kw_only=True):
    """An adapter that a request uses: the name under which it is registered, and the version of its content."""

    name: Name
    version: Name


class Submit(Message, frozen=True, kw_only=True):
    """Gateway -> router: serve this request. Also what a worker admits.

    `generated` holds the tokens the client already has when a request resumes elsewhere; they count towards
    `max_tokens`. `logprobs` are those of the last of them, as far as they may be asked for again. `stop_token_ids`
    already contains the end-of-sequence ids unless the client ignores them; none of them may be chosen before
    `min_tokens`. `deadline` is in seconds since the epoch; `timeout_s` is what was left of it when the message was
    sent: clocks differ, and the earlier end counts.
    `version`: of the model, by which `generated` was made; only by it may the request go on.
    `open_ended`: the client named no number of tokens; `max_tokens` is what the context has room for, and becomes less
    where no instance has the KV cache for that.
    `context_id`: names the conversation, of which workers keep the KV.
    `cache_salt`: only requests with the same one share KV of prompts that begin alike.
    `adapter`: what is added to the products of the model's matrices.
    `follows`: an earlier request of the same prompt, or of its beginning, that has got a token. So the prompt's KV is
    kept where that one went, and this one goes there, too, if there is room.
    `pixels`: of the image that the prompt is, in the size that the model takes; the prompt has a token for each row.
    `traceparent`: the gateway's span, of which the spans of all processes that work on the request are children.
    """

    request_id: Name
    model: Name
    gateway: Name
    prompt: Annotated[list[TokenId], Meta(min_length=1)]
    generated: list[TokenId] = []
    logprobs: list[TokenLogprobs] = []
    prompt_logprobs: PromptLogprobs | None = None
    sampling: Sampling = Sampling()
    max_tokens: Positive = 16
    open_ended: bool = False
    min_tokens: Count = 0
    stop_token_ids: list[TokenId] = []
    priority: Priority = 0
    deadline: Amount
    timeout_s: Amount | None = None
    version: Name | None = None
    context_id: Name | None = None
    cache_salt: Name | None = None
    traceparent: TraceParent | None = None
    adapter: AdapterUse | None = None
    follows: Name | None = None
    pixels: Annotated[bytes, Meta(max_length=MOST_IMAGE_BYTES)] = b""


class Submitted(Message, frozen=True, kw_only=True):
    """Router -> gateway: accepted. `ahead` requests of this model wait before it; `worker` has it already."""

    ahead: Count
    worker: Name | None = None


class Admit(Message, frozen=True, kw_only=True):
    """Router -> worker: this request is yours. `attempt` tells apart two admissions of one request.

    `decode`: the worker that shall go on with it after its first token, if it has room.
    """

    request: Submit
    attempt: Count = 0
    decode: Name | None = None


class AskRunning(Message, frozen=True):
    """Router -> worker: which requests do you have? A router that was started anew knows of none."""


class Running(Message, frozen=True, kw_only=True):
    """A request at a worker. `tokens`: those it has, prompt and generated."""

    request_id: Name
    gateway: Name
    tokens: Positive


class RunningRequests(Message, frozen=True, kw_only=True):
    """Worker -> router: all that were admitted here and have not ended, and the last that `ended` here."""

    requests: list[Running] = []
    ended: list[Name] = []


class Cancel(Message, frozen=True, kw_only=True):
    """Stop a request; idempotent, never answered."""

    request_id: Name


class Replay(Message, frozen=True, kw_only=True):
    """Gateway -> worker: send the tokens from `index` on again (a frame was lost)."""

    request_id: Name
    index: Count
    gateway: Name


class Tokens(Message, frozen=True, kw_only=True, omit_defaults=True):
    """Tokens of one request in one frame. `index` is the position of the first among the generated tokens. `logprobs`
    has one for each token where the request asks for them, `prompt_logprobs` of the first row one for each token of the
    prompt but the first.

    `finish_reason` is set on the last row of a request, `error` and its `code` (HTTP's meaning; None is a failure of
    the model) only with the reason "error".
    """

    request_id: Name
    index: Count
    token_ids: list[TokenId]
    logprobs: list[TokenLogprobs] = []
    prompt_logprobs: list[TokenLogprobs] = []
    finish_reason: FinishReason | None = None
    error: str | None = None
    code: HttpError | None = None
    cached_tokens: Count = 0


class TokenFrame(Message, frozen=True, kw_only=True):
    """Worker -> gateway: all tokens of one engine step, or of several short ones, for one gateway. `version`: of the
    model that made them."""

    worker: Name
    step: Count
    rows: list[Tokens]
    version: Name | None = None


class RequestLost(Message, frozen=True, kw_only=True):
    """Router -> gateway: the worker that served this request is gone; submit it again with the tokens you have."""

    request_id: Name
    reason: str


class RequestsEnded(Message, frozen=True, kw_only=True):
    """Worker -> router: these requests left the worker, whatever the reason. `tokens`: how many tokens each of them
    has generated, here and elsewhere; empty where that is not known any more."""

    worker: Name
    request_ids: list[Name]
    tokens: list[Count] = []


def leaving(request: Submit, wall: float) -> Submit:
    """The request as it is sent at `wall`: with the seconds that are left by this machine's clock."""
    return replace(request, timeout_s=max(0.0, request.deadline - wall))


def arrived(request: Submit, wall: float) -> Submit:
    """The request as it is received at `wall`: its deadline is the sender's, or when the seconds left end, if
    earlier."""
    if request.timeout_s is None:
        return request
    return replace(request, deadline=min(request.deadline, wall + request.timeout_s))


class AskVocabulary(Message, frozen=True, kw_only=True):
    """Worker -> any gateway: the vocabulary of this version of a model, from byte `offset` on."""

    model: Name
    version: Name
    offset: Annotated[int, Meta(ge=0, le=MOST_VOCABULARY_BYTES - 1)] = 0


class VocabularyPart(Message, frozen=True, kw_only=True):
    """A part of a model's tokenizer.json, compressed by zlib; `digest` is that of all `total_bytes`. `ends` are the
    end-of-sequence tokens."""

    data: Annotated[bytes, Meta(max_length=PART_BYTES)]
    total_bytes: Annotated[int, Meta(ge=1, le=MOST_VOCABULARY_BYTES)]
    digest: Digest
    ends: list[TokenId] = []


def queue_position(arrival: int, priority: int) -> int:
    """Where a request stands in a queue, in which none waits for ever: the lowest position goes first.

    It is the number of its arrival, shifted by its priority as if it had come so much earlier or later. So only a
    limited number of later requests can overtake it, and it becomes the first in the end.
    """
    return arrival + PRIORITY_ARRIVALS * priority
