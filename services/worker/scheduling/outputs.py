"""What a step yields for gateways: new tokens, and a history of them to be sent again. Pure."""

from collections import OrderedDict
from dataclasses import dataclass, field

import msgspec

from livescale.services.worker.scheduling.sequence import CARRIED_LOGPROBS, Sequence
from livescale.shared.messages.requests import FinishReason, Submit, TokenLogprobs, Tokens


class TokenOutput(msgspec.Struct, frozen=True):
    """A row of the next token frame to `gateway`. It has a finish reason if the request has left the scheduler."""

    gateway: str
    row: Tokens


def token_output(
    sequence: Sequence,
    tokens: list[int],
    finish_reason: FinishReason | None = None,
    error: str | None = None,
    code: int | None = None,
) -> TokenOutput:
    """Make the row for the sequence's last tokens, which are `tokens`."""
    index = sequence.generated - len(tokens)
    row = Tokens(
        request_id=sequence.request_id,
        index=index,
        token_ids=tokens,
        logprobs=sequence.logprobs[-len(tokens) :] if tokens and sequence.logprobs else [],
        prompt_logprobs=[] if index or not tokens else sequence.prompt_logprobs,
        finish_reason=finish_reason,
        error=error,
        code=code,
        cached_tokens=sequence.cached,
    )
    return TokenOutput(sequence.request.gateway, row)


def earlier_tokens(request: Submit) -> Tokens:
    """The tokens that other workers sent for this request and that may be asked for here: all of them, or those whose
    log-probabilities came along."""
    index = 0 if request.sampling.logprobs is None else len(request.generated) - len(request.logprobs)
    asked = request.prompt_logprobs
    return Tokens(
        request_id=request.request_id,
        index=index,
        token_ids=request.generated[index:],
        logprobs=request.logprobs,
        prompt_logprobs=[] if asked is None or index or not request.generated else asked.told,
    )


@dataclass
class SentTokens:
    """All tokens of a request from `index` on, their log-probabilities where there are any, and the row that brought
    the last of them. Log-probabilities are large: where there are any, only the last tokens are kept."""

    index: int
    last: Tokens
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)

    def add(self, row: Tokens) -> None:
        """Append the tokens of a row that was sent."""
        self.token_ids += row.token_ids
        self.logprobs += row.logprobs
        self.prompt_logprobs += row.prompt_logprobs
        self.last = row
        if len(self.logprobs) >= 2 * CARRIED_LOGPROBS:
            self.index += len(self.token_ids) - CARRIED_LOGPROBS
            del self.token_ids[:-CARRIED_LOGPROBS], self.logprobs[:-CARRIED_LOGPROBS]
            self.prompt_logprobs.clear()


class TokenHistory:
    """The tokens sent for running requests, and for the last `kept` requests that ended.

    A gateway that lost a frame can ask for them again.
    """

    def __init__(self, kept: int = 512) -> None:
        self._kept = kept
        self._running: dict[str, SentTokens] = {}
        self._ended: OrderedDict[str, SentTokens] = OrderedDict()

    def record(self, row: Tokens) -> None:
        """Append a row that was sent; its finish reason ends the request."""
        said = self._running.get(row.request_id)
        if said is None:
            said = self._running[row.request_id] = SentTokens(row.index, row)
        said.add(row)
        if row.finish_reason is None:
            return
        self._ended[row.request_id] = self._running.pop(row.request_id)
        if len(self._ended) > self._kept:
            self._ended.popitem(last=False)

    def forget(self, request_id: str) -> None:
        """Drop a request that goes on at another worker."""
        self._running.pop(request_id, None)

    def drop_running(self) -> None:
        """Drop all running requests: this worker no longer has them."""
        self._running.clear()

    def ended(self) -> list[str]:
        """The requests that have ended, as far back as they are kept."""
        return [id for id in self._ended if id not in self._running]

    def since(self, request_id: str, index: int) -> Tokens | None:
        """One row with all tokens from generated token `index` on; None where they are not known here."""
        said = self._running.get(request_id) or self._ended.get(request_id)
        if said is None or index < said.index:
            return None
        first = index - said.index
        return msgspec.structs.replace(
            said.last,
            index=index,
            token_ids=said.token_ids[first:],
            logprobs=said.logprobs[first:],
            prompt_logprobs=said.prompt_logprobs if index == 0 else [],
        )
