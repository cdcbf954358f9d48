"""Teaches a tiny made model a few conversations by heart, so that it calls tools and reasons in texts of its own."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from tokenizers import Tokenizer
from torch.nn.functional import cross_entropy

from livescale.services.gateway.chat_template import ChatTemplate, RenderingWay, TemplateRefusal
from livescale.services.gateway.conversation import Conversation
from livescale.services.gateway.tools import Tool, for_template

MOST_STEPS = 400
MOST_TRANSCRIPTS = 64
MOST_TOKENS = 512  # of a prompt and its answer
SURE = 0.9  # how likely each token of each answer becomes
RATE = 4e-3
WARM_UP_STEPS = 10
CHECK_STEPS = 10  # the parameters are rounded and tried every so many steps
BATCH_ROWS = 3

Progress = Callable[[str], None]


class BadTranscripts(Exception):
    """The transcripts cannot be taught. The message says why."""


class Transcript(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A conversation as clients send it. The model learns what the assistant says in it."""

    messages: Conversation
    tools: list[Tool] = []


@dataclass(frozen=True)
class Lesson:
    """A prompt, and the answer that a model is to learn for it."""

    prompt: str
    answer: str


@dataclass(frozen=True)
class _Batch:
    """Tokens of some lessons, a row each; the places whose next token is an answer's, and these answers' tokens."""

    tokens: torch.Tensor
    learned: torch.Tensor
    answer: torch.Tensor

    def told_by(self, model: torch.nn.Module) -> torch.Tensor:
        """The model's logits for each of the answers' tokens."""
        logits: torch.Tensor = model(self.tokens).logits
        return logits[self.learned]


def read_transcripts(path: Path) -> list[Transcript]:
    """Read a file with a transcript in each line. Raises BadTranscripts, OSError."""
    transcripts = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            transcripts.append(msgspec.json.decode(line, type=Transcript))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise BadTranscripts(f"{path}, line {number}: {error}") from None
    if not 0 < len(transcripts) <= MOST_TRANSCRIPTS:
        raise BadTranscripts(f"{path} has {len(transcripts)} transcripts; give 1 to {MOST_TRANSCRIPTS}")
    return transcripts


def lessons(transcripts: Sequence[Transcript], template: ChatTemplate) -> list[Lesson]:
    """Everything that an assistant says, each after all that came before. Raises BadTranscripts."""
    try:
        found = [lesson for transcript in transcripts for lesson in _lessons(transcript, template)]
    except TemplateRefusal as error:
        raise BadTranscripts(f"the chat template refuses a transcript: {error}") from None
    if not found:
        raise BadTranscripts("no assistant says anything in the transcripts")
    return found


def _lessons(transcript: Transcript, template: ChatTemplate) -> Iterator[Lesson]:
    tools = {"tools": for_template(transcript.tools)} if transcript.tools else {}
    for index, message in enumerate(transcript.messages):
        if message.role == "assistant":
            prompt = template.render(transcript.messages[:index], RenderingWay(variables=tools))
            whole = template.render(transcript.messages[: index + 1], RenderingWay(False, variables=tools))
            yield Lesson(prompt, whole.removeprefix(prompt))


def teach(
    directory: Path, taught: Sequence[Lesson], tokenizer: Tokenizer, seed: int, progress: Progress
) -> dict[str, torch.Tensor]:
    """The parameters by which the model of this directory's config.json gives all answers; the same for the same seed.

    They are learned on one core, from a random beginning, until each token of each answer is sure. Raises
    BadTranscripts where that takes too many steps.
    """
    batches = _batches(taught, tokenizer)
    answered = sum(len(batch.answer) for batch in batches)
    with _one_core():
        model = _random_model(directory, seed)
        optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.0)
        for step in range(1, MOST_STEPS + 1):
            for group in optimizer.param_groups:
                group["lr"] = RATE * min(1.0, step / WARM_UP_STEPS)
            optimizer.zero_grad()
            for batch in batches:
                loss = cross_entropy(batch.told_by(model), batch.answer, reduction="sum") / answered
                loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if step % CHECK_STEPS == 0:
                rounded = {name: tensor.detach().bfloat16() for name, tensor in model.state_dict().items()}
                sure = _least_likely(directory, rounded, batches)
                progress(f"step {step} of at most {MOST_STEPS}: the least likely token of an answer has {sure:.2f}")
                if sure >= SURE:
                    return rounded
    raise BadTranscripts(f"the model has not learned the transcripts in {MOST_STEPS} steps; give fewer or shorter ones")


@contextmanager
def _one_core() -> Iterator[None]:
    """Compute with one thread: the order of sums, and hence the result, depends on their number."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _random_model(directory: Path, seed: int) -> torch.nn.Module:
    # transformers takes seconds to import, and most made models are not taught.
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = AutoConfig.from_pretrained(directory)
        model: torch.nn.Module = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    return model


def _least_likely(directory: Path, parameters: dict[str, torch.Tensor], batches: Sequence[_Batch]) -> float:
    """How likely the least likely token of the answers is, by parameters as they are stored."""
    model = _random_model(directory, 0)
    model.load_state_dict({name: tensor.float() for name, tensor in parameters.items()})
    with torch.inference_mode():
        likely = [
            torch.softmax(batch.told_by(model), dim=-1).gather(-1, batch.answer.unsqueeze(-1)) for batch in batches
        ]
    return float(torch.cat(likely).min())


def _batches(taught: Sequence[Lesson], tokenizer: Tokenizer) -> list[_Batch]:
    """The lessons by their length, some at a time: a batch takes as long as if all were as its longest."""
    rows = [
        [tokenizer.encode(text, add_special_tokens=False).ids for text in (one.prompt, one.answer)] for one in taught
    ]
    rows.sort(key=lambda row: len(row[0]) + len(row[1]))
    width = sum(map(len, rows[-1]))
    if width > MOST_TOKENS:
        raise BadTranscripts(f"a transcript has {width} tokens; {MOST_TOKENS} are the most")
    return [_batch(rows[first : first + BATCH_ROWS]) for first in range(0, len(rows), BATCH_ROWS)]


def _batch(rows: Sequence[Sequence[list[int]]]) -> _Batch:
    tokens = torch.zeros((len(rows), sum(map(len, rows[-1]))), dtype=torch.long)
    learned = torch.zeros_like(tokens, dtype=torch.bool)
    for row, (prompt, answer) in enumerate(rows):
        end = len(prompt) + len(answer)
        tokens[row, :end] = torch.tensor([*prompt, *answer])
        learned[row, len(prompt) - 1 : end - 1] = True
    return _Batch(tokens, learned, torch.tensor([token for _, answer in rows for token in answer]))
