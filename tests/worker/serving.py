"""Runs requests through the real scheduler and the real engine, one step after the other."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from livescale.services.worker.engine.engine import TorchEngine
from livescale.services.worker.engine.sampling import choose_tokens
from livescale.services.worker.scheduling.batch import Batch, Chosen, TokenOutput
from livescale.services.worker.scheduling.scheduler import Scheduler
from livescale.shared.messages.requests import Submit, TokenLogprobs
from tests.worker.engine.models import checkpointed, kept_logits
from tests.worker.requests import limits


@dataclass
class Served:
    """What each request got: its new tokens, their log-probabilities, and the logits they were chosen from."""

    tokens: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    logits: dict[str, list[torch.Tensor]] = field(default_factory=lambda: defaultdict(list))
    logprobs: dict[str, list[TokenLogprobs]] = field(default_factory=lambda: defaultdict(list))
    steps: int = 0
    preempted: int = 0
    cached: dict[str, int] = field(default_factory=dict)
    fetched: int = 0

    def take(self, batch: Batch, logits: torch.Tensor | None, outputs: list[TokenOutput]) -> None:
        self.steps += 1
        self.preempted += len(batch.preempted)
        self.fetched += batch.prefixes.fetched
        drawing = [chunk.request_id for chunk in batch.chunks if chunk.sampling is not None]
        for request_id, row in zip(drawing, () if logits is None else logits.unbind(0), strict=True):
            self.logits[request_id].append(row)
        for output in outputs:
            self.tokens[output.row.request_id] += output.row.token_ids
            self.logprobs[output.row.request_id] += output.row.logprobs
            self.cached[output.row.request_id] = output.row.cached_tokens

    def rows(self, request_id: str) -> torch.Tensor:
        """The logits of a request, `[generated token, vocab]`."""
        return torch.stack(self.logits[request_id])


def serve(engine: TorchEngine, arrivals: Iterable[tuple[int, Submit]], spans: int = 1, **fields: Any) -> Served:
    """Serve requests that arrive before the given steps, the layers in `spans` parts."""
    scheduler = Scheduler(limits(kv_blocks=engine.store.blocks, **fields))
    scheduler.keep_prefixes()
    pending = sorted(arrivals, key=lambda arrival: arrival[0])
    served = Served()
    while True:
        while pending and pending[0][0] <= served.steps:
            scheduler.add(pending.pop(0)[1])
        batch = scheduler.next_batch()
        if batch is None and not pending:
            return served
        if batch is None:
            served.steps += 1
            continue
        logits = batch_logits(engine, batch, spans)
        # With the engine's own kernels, as numpy tells of a token that is almost sure otherwise in its last digits.
        kernels = engine._kernels
        chosen = Chosen([]) if logits is None else choose_tokens(logits.clone(), batch.samplings, kernels=kernels)
        served.take(batch, logits, scheduler.complete(batch, chosen, 0.0))


def serve_each(engine: TorchEngine, requests: Iterable[Submit]) -> dict[str, Served]:
    """Serve each request alone, one after the other."""
    return {request.request_id: serve(engine, [(0, request)]) for request in requests}


def strays(name: str, prompts: Mapping[str, list[int]], served: Served) -> tuple[float, float]:
    """How far off transformers' logits in float32 those are that were served, and its own in bfloat16 for the same
    tokens: root mean squares.

    Of models with experts it is that of the median row: where two experts are almost as good, a rounding chooses the
    other one, and that row has quite another result.
    """
    ours, theirs = [], []
    for key, prompt in prompts.items():
        tokens = served.tokens[key]
        right = kept_logits(name, prompt, tokens)
        ours.append(served.rows(key).float().cpu() - right)
        theirs.append(kept_logits(name, prompt, tokens, "bfloat16") - right)
    if checkpointed(name).manifest.config.experts is not None:
        return median_row(ours), median_row(theirs)
    return _root_mean_square(ours), _root_mean_square(theirs)


def median_row(errors: list[torch.Tensor]) -> float:
    return float(torch.cat(errors).square().mean(dim=1).sqrt().median())


def _root_mean_square(errors: list[torch.Tensor]) -> float:
    return float(torch.cat(errors).square().mean().sqrt())


def batch_logits(engine: TorchEngine, batch: Batch, spans: int) -> torch.Tensor | None:
    """The logits of the batch's samplings, `[sampling, vocab]`."""
    engine.lay_down(batch)
    rows = engine.rows(batch.chunks)
    hidden = engine.embed(rows)
    count = len(engine.store.cache)
    for part in range(spans):
        hidden = engine.layers(part * count // spans, (part + 1) * count // spans, hidden, rows)
    return engine.head(hidden[rows.sampled]) if batch.samplings else None
