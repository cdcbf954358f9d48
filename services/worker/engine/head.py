"""What follows the last layer: logits and the tokens that are chosen by them, or vectors of models that pool."""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from msgspec.structs import replace

from livescale.services.worker.engine.contract import BlockMissing
from livescale.services.worker.engine.kernels.variants import Kernels
from livescale.services.worker.engine.matrices import linear_of, make_linear
from livescale.services.worker.engine.norms import Norm, as_it_is, norm_of
from livescale.services.worker.engine.parameters import Linear, Tensors, padded
from livescale.services.worker.engine.sampling import choose_tokens, choose_vectors, score_prompts
from livescale.services.worker.engine.tensor_parallel import Ranks, side_by_side
from livescale.services.worker.grammars.masks import Masks, without_masks
from livescale.services.worker.scheduling.batch import NOTHING_CHOSEN, Chosen, ScheduledChunk
from livescale.shared.messages.parameters import Manifest, ModelConfig


class Pooler:
    """The last block of a model that pools, made of its tensors: a norm, and matrices where the model has labels."""

    def __init__(self, config: ModelConfig, tensors: Tensors, kernels: Kernels | None) -> None:
        self._pooling = config.pooling
        self._pad = padded if kernels is None else as_it_is
        self._norm = norm_of(config, tensors, "model.norm", kernels)
        self._pooler: Linear | None = make_linear(tensors, "pooler", kernels=kernels) if config.pooler else None
        self._matrix: Linear | None = make_linear(tensors, "score", kernels=kernels) if config.labels else None

    @torch.inference_mode()
    def pool(self, hidden: torch.Tensor, chunks: Sequence[ScheduledChunk]) -> Chosen:
        """The vector of each prompt that ends in `chunks`, whose rows are `hidden` `[row, hidden]`."""
        taken = list(self._taken(chunks))
        if not taken:
            return NOTHING_CHOSEN
        rows = [row for part in taken for row in part]
        normed = self._norm(self._pad(hidden[rows]))
        if self._matrix is not None:
            normed = self._scores(normed)
        numbers = normed[: len(rows)].float().cpu().numpy()
        # Of one row the mean is the row itself.
        made = [_mean(part) for part in np.split(numbers, np.cumsum([len(part) for part in taken])[:-1])]
        return choose_vectors([vector.astype("<f4").tobytes() for vector in made])

    def _taken(self, chunks: Sequence[ScheduledChunk]) -> Iterator[range]:
        """The rows that each prompt's vector is made of."""
        stop = 0
        for chunk in chunks:
            start, stop = stop, stop + len(chunk.tokens)
            if chunk.sampling is None:
                continue
            match self._pooling:
                case "cls":
                    yield range(start, start + 1)
                case "mean":
                    yield range(start, stop)
                case _:
                    yield range(stop - 1, stop)

    def _scores(self, rows: torch.Tensor) -> torch.Tensor:
        assert self._matrix is not None
        if self._pooler is None:
            return self._matrix(rows)
        # Tangents in float64, row by row, as torch computes the last numbers of a tensor by other instructions.
        bent = torch.stack([row.double().tanh() for row in self._pooler(rows)]).to(rows.dtype)
        return self._matrix(bent)


def _mean(rows: "npt.NDArray[np.float32]") -> "npt.NDArray[np.float32]":
    """The mean of `[row, number]`, added up in float64 in the order of rows."""
    mean: npt.NDArray[np.float32] = (np.add.reduce(rows.astype(np.float64), axis=0) / len(rows)).astype(np.float32)
    return mean


class Head:
    """The last block of a model, as the rank of `manifest` has it; `config` is what this rank computes."""

    def __init__(self, manifest: Manifest, config: ModelConfig, kernels: Kernels | None, ranks: Ranks | None) -> None:
        self._manifest = manifest
        self._config = config
        self._kernels = kernels
        self._ranks = ranks
        self._norm: Norm | None = None
        self._matrix: Linear | None = None
        self._pooler: Pooler | None = None
        self.masks: Masks | None = None  # of grammars, once the vocabulary is here

    def add(self, tensors: Tensors) -> None:
        """Take the tensors of the last block: a norm and a matrix, or what pools."""
        config = self._config
        if config.pooling != "none":
            self._pooler = Pooler(config, tensors, self._kernels)
            return
        self._norm = norm_of(config, tensors, "model.norm", self._kernels)
        if not config.tie_word_embeddings:
            self._matrix = make_linear(tensors, "lm_head", kernels=self._kernels)

    def tie(self, embedding: torch.Tensor) -> None:
        """Make the matrix of the embedding where they are the same. Not before both blocks are here: no layer has to
        wait for it."""
        if self._config.tie_word_embeddings and self._norm is not None and self._matrix is None:
            self._matrix = linear_of(embedding, self._kernels)

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Activations `[row, hidden]` -> logits `[row, vocab]`. Raises BlockMissing."""
        if self._norm is None or self._matrix is None:
            needed = len(self._manifest.blocks) - 1 if self._norm is None else 0
            raise BlockMissing(f"cannot make logits: block {needed} was not added")
        logits = bent_logits(self._matrix(self._norm(self._matrix.padded(hidden)))[: len(hidden)], self._config)
        return logits if self._ranks is None else side_by_side(logits, self._manifest.config.vocab_size, self._ranks)

    def begin_masks(self, chunks: Sequence[ScheduledChunk]) -> None:
        """Have masks of tokens computed while the layers are."""
        if self.masks is not None:
            self.masks.begin_step(chunks)

    def choose(self, hidden: torch.Tensor, sampled: torch.Tensor | slice, chunks: Sequence[ScheduledChunk]) -> Chosen:
        """Rank 0 returns what is chosen after the last layer, with a token after each of the rows `sampled`; all ranks
        run the head. Raises BlockMissing."""
        if self._config.pooling != "none":
            return self._pooled(hidden, chunks)
        is_first = self._manifest.shard == 0
        prompts = score_prompts(hidden, chunks, self.logits, self._kernels, tells=is_first)
        samplings = [chunk.sampling for chunk in chunks if chunk.sampling is not None]
        if not samplings:
            return Chosen([], prompts=prompts) if prompts else NOTHING_CHOSEN
        logits = self.logits(hidden[sampled])
        if not is_first:
            return NOTHING_CHOSEN
        permitted = without_masks(chunks) if self.masks is None else self.masks.take_step(chunks)
        chosen = choose_tokens(logits, samplings, permitted, self._kernels)
        return replace(chosen, prompts=prompts) if prompts else chosen

    def _pooled(self, hidden: torch.Tensor, chunks: Sequence[ScheduledChunk]) -> Chosen:
        if self._pooler is None:
            raise BlockMissing(f"cannot pool: block {len(self._manifest.blocks) - 1} was not added")
        return NOTHING_CHOSEN if self._manifest.shard else self._pooler.pool(hidden, chunks)


def bent_logits(logits: torch.Tensor, config: ModelConfig) -> torch.Tensor:
    """Logits `[row, token]` times the model's factor, bent towards its limit by a tangent."""
    if config.logits_scale != 1.0:
        logits = logits * config.logits_scale
    cap = config.logits_cap
    if not cap:
        return logits
    # Row by row, as torch computes the last numbers of a tensor by other instructions.
    return torch.stack([(row.float() / cap).tanh() * cap for row in logits]).to(logits.dtype)
