"""What a model is for: to generate text, to make vectors, or to give scores. Pure."""

from dataclasses import dataclass

from livescale.services.gateway.errors import wrong_use
from livescale.shared.messages.images import Images
from livescale.shared.messages.parameters import Pooling

GENERATION = "/v1/completions or /v1/chat/completions"
SCORES = "/score, /rerank, /classify or /pooling"


@dataclass(frozen=True)
class ModelUse:
    """What becomes of a prompt: its next tokens, or by a `pooling` a vector, or with `labels` as many scores. The
    fields are those of ModelConfig. `label_names` are what its labels are called; where they are `independent`, a text
    may have several. By the two tokens of `verdict` a model that generates says that a text does not fit another one,
    or does. A model of `images` takes no texts."""

    pooling: Pooling = "none"
    normalized: bool = False
    bare_scores: bool = False
    labels: int = 0
    label_names: tuple[str, ...] = ()
    independent: bool = False
    verdict: tuple[int, ...] = ()
    images: Images | None = None

    @property
    def generates(self) -> bool:
        return self.pooling == "none"

    @property
    def makes_vectors(self) -> bool:
        return self.pooling != "none" and not self.labels

    @property
    def scores_pairs(self) -> bool:
        """Whether it gives one score of two texts, and not two vectors to be compared."""
        return self.labels == 1 or bool(self.verdict)


GENERATES = ModelUse()


def check_generates(model: str, use: ModelUse) -> None:
    """Raises ApiError 400 where the model generates nothing."""
    if use.makes_vectors:
        raise wrong_use(model, "makes vectors and generates no text", "/v1/embeddings, /score or /rerank")
    if not use.generates:
        raise wrong_use(model, "gives scores and generates no text", SCORES)


def check_reads(model: str, use: ModelUse) -> None:
    """Raises ApiError 400 where the model takes no texts."""
    if use.images is not None:
        raise wrong_use(model, "takes images and no texts", "/classify")


def check_pools(model: str, use: ModelUse) -> None:
    """Raises ApiError 400 where the model neither makes vectors nor gives scores of one text."""
    if use.generates:
        raise wrong_use(model, "generates text and makes no vectors", GENERATION)


def check_embeds(model: str, use: ModelUse) -> None:
    """Raises ApiError 400 where the model makes no vectors."""
    check_pools(model, use)
    if use.labels:
        raise wrong_use(model, "gives scores and makes no vectors", SCORES)


def check_classifies(model: str, use: ModelUse) -> None:
    """Raises ApiError 400 where the model has no labels."""
    check_pools(model, use)
    if use.makes_vectors:
        raise wrong_use(model, "makes vectors and has no labels", "/v1/embeddings, /score or /rerank")


def check_scores(model: str, use: ModelUse) -> None:
    """Raises ApiError 400 where the model cannot say how well two texts fit."""
    if use.labels > 1:
        raise wrong_use(model, f"gives {use.labels} scores of a text and not one", "/classify or /pooling")
    if not use.scores_pairs and not use.makes_vectors:
        raise wrong_use(
            model,
            "generates text, and its config.json names no tokens in classifier_from_token by which it judges",
            GENERATION,
        )
