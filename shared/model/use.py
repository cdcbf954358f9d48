"""What a checkpoint is for, as its class and the files of sentence-transformers say: to generate text, to make vectors,
or to give scores. Pure."""

from msgspec.structs import replace

from livescale.shared.messages.parameters import ModelConfig, Pooling
from livescale.shared.model.declaration.architecture import CLASSIFIES_IMAGES, GENERATES, Architecture
from livescale.shared.model.declaration.config_file import REMEDIES, CheckpointError, ConfigFile
from livescale.shared.model.sentence_files import SentenceModel

POOLS, CLASSIFIES = "Model", "ForSequenceClassification"
DEFAULT_LABELS = 2  # of transformers, where config.json names none
IDENTITY = "Identity"
SEVERAL_LABELS = "multi_label_classification"  # of one text
TOLD_BY = "sbert_ce_default_activation_function"


def read_use(raw: ConfigFile, architecture: Architecture, sentence: SentenceModel | None) -> ModelConfig:
    """The configuration with what the model makes of a prompt. Raises CheckpointError."""
    encodes = not architecture.generates
    kind = _kind(raw.texts("architectures"), architecture)
    # Before anything else is looked at, because these say that nothing else of the file means what it says elsewhere.
    raw.refuse(*REMEDIES)
    config = architecture.describe(raw)
    tokens = [] if encodes else raw.texts("classifier_from_token")
    raw.flag("is_original_qwen3_reranker")
    if tokens:
        return replace(config, classifier_from_token=_two(tokens))
    if kind in (CLASSIFIES, CLASSIFIES_IMAGES):
        labels = len(raw.mapping("id2label")) or DEFAULT_LABELS
        pooling: Pooling = "cls" if encodes else "last"
        pooler = encodes and kind == CLASSIFIES
        return replace(config, pooling=pooling, labels=labels, pooler=pooler, bare_scores=_bare(raw))
    if sentence is None and kind in GENERATES:
        return config
    said = sentence or SentenceModel("cls" if encodes else "last", normalized=True)
    if said.pooling != "last" and not encodes:
        raise CheckpointError(
            f"pooling by {said.pooling!r} is not served of this architecture: a row sees those before it only, so the "
            "vector is the last row's; use a checkpoint with pooling_mode_lasttoken"
        )
    return replace(config, pooling=said.pooling, normalized=said.normalized)


def _kind(classes: list[str], architecture: Architecture) -> str:
    name = architecture.class_name
    own = next((kind for kind in (*GENERATES, CLASSIFIES_IMAGES) if name.endswith(kind)), POOLS)
    kinds = (own,) if own == CLASSIFIES_IMAGES else dict.fromkeys((own, POOLS, CLASSIFIES))
    known = {name.removesuffix(own) + kind: kind for kind in kinds}
    found = next((known[one] for one in classes if one in known), None)
    if classes and found is None:
        raise CheckpointError(f"architectures {str(classes)[:200]} has none of {', '.join(known)}; use one of these")
    return found or own


def _two(tokens: list[str]) -> list[str]:
    if len(tokens) != 2:
        raise CheckpointError(
            f"classifier_from_token has {len(tokens)} tokens, must have two: the one for texts that do not fit, and "
            "the one for those that do"
        )
    return tokens


def _bare(raw: ConfigFile) -> bool:
    """Whether scores are told as the matrix gives them: they are no likelihoods where the model was trained on numbers,
    and cross-encoders of sentence-transformers may say so where it is not said what it was trained on."""
    trained_on, older = raw.text("problem_type", ""), raw.text(TOLD_BY, "")
    newer = raw.mapping("sentence_transformers").get("activation_fn", "")
    return trained_on == "regression" if trained_on else str(newer or older).endswith(IDENTITY)
