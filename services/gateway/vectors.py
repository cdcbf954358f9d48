"""From what workers make of texts to vectors and scores. Pure."""

import base64

import numpy as np
import numpy.typing as npt

from livescale.services.gateway.checkpoint_text import ModelUse
from livescale.services.gateway.errors import bad_request
from livescale.services.gateway.output import TextPiece
from livescale.services.gateway.pooling_shapes import Vector
from livescale.services.gateway.progress import Fresh
from livescale.shared.messages.requests import TokenLogprobs

Floats = npt.NDArray[np.float64]
MOST_EXPONENT = 700.0  # e to more than this is no finite number


class PooledOutput:
    """Keeps what is told of a request's only token. It has no text."""

    reasoning_tokens: int | None = None

    def __init__(self) -> None:
        self.told: TokenLogprobs | None = None

    def feed(self, fresh: Fresh) -> TextPiece:
        self.told = next(iter(fresh.logprobs), self.told)
        return TextPiece("", fresh.token_ids, None if fresh.finish_reason is None else "length")


def vector_of(told: TokenLogprobs) -> Floats:
    """The numbers that a worker made of a text."""
    return np.frombuffer(told.pooled, "<f4").astype(np.float64)


def embedding_of(made: Floats, use: ModelUse, dimensions: int | None = None, normalize: bool | None = None) -> Floats:
    """The vector as clients get it: its first `dimensions` numbers, of the length 1 where the model or the client says
    so. Raises ApiError 400."""
    if dimensions is not None and dimensions > len(made):
        raise bad_request(
            f"'dimensions' is {dimensions}; this model's vectors have {len(made)}; give at most that.", "dimensions"
        )
    made = made[:dimensions]
    if not (use.normalized if normalize is None else normalize):
        return made
    length = float(np.sqrt((made * made).sum()))
    return made / length if length else made


def likelihoods(made: Floats, use: ModelUse) -> Floats:
    """Scores as clients get them: between 0 and 1, unless the model tells bare ones. Those of several labels add up to
    1, unless these are independent."""
    if use.bare_scores:
        return made
    if len(made) == 1 or use.independent:
        # The softmax of a score and 0 is the sigmoid of the score.
        return np.array([_shares(np.array([0.0, one]))[1] for one in made])
    return _shares(made)


def _shares(made: Floats) -> Floats:
    powers: Floats = np.exp(made - made.max())
    shares: Floats = powers / powers.sum()
    return shares


def verdict(told: TokenLogprobs) -> float:
    """How likely the second of two named tokens is, of these two."""
    (_, no), (_, yes) = told.top
    return float(1 / (1 + np.exp(min(no - yes, MOST_EXPONENT))))


def cosine(one: Floats, other: Floats) -> float:
    """The cosine of the angle between two vectors; 0 where one of them has no direction."""
    lengths = np.sqrt((one * one).sum() * (other * other).sum())
    return float((one * other).sum() / lengths) if lengths else 0.0


def written(vector: Floats, encoding_format: str) -> Vector:
    """A vector in JSON: as numbers, or as base64 of float32."""
    if encoding_format == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return listed(vector)


def listed(vector: Floats) -> list[float]:
    """The numbers of a vector, in the bits of float32."""
    numbers: list[float] = vector.astype("<f4").astype(np.float64).tolist()
    return numbers
