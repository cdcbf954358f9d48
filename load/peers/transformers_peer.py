"""Hugging Face transformers as a peer: `generate` with torch's scaled dot product attention, or with its own code for
models that have sinks."""

import time

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, StoppingCriteria, StoppingCriteriaList
from transformers.utils.logging import disable_progress_bar

from livescale.load.peers.engine_process import Stopwatch, ask_engine, serve
from livescale.load.peers.protocol import (
    Answer,
    AskForced,
    GreedyTokens,
    Prompts,
    Question,
    Ready,
    StartEngine,
    StepSeconds,
)


class Transformers:
    """The model of a checkpoint, run on one thread."""

    def __init__(self, start: StartEngine) -> None:
        torch.set_num_threads(1)
        disable_progress_bar()
        self._model = AutoModelForCausalLM.from_pretrained(
            start.checkpoint, dtype=getattr(torch, start.dtype), local_files_only=True
        ).eval()
        # Where it is read to, it lies in pages of its file: here as all others have it, in memory with huge pages.
        for parameter in self._model.parameters():
            parameter.data = parameter.data.clone()
        # Nothing ends a text early.
        self._model.generation_config = GenerationConfig(do_sample=False, pad_token_id=0)
        self.ready = Ready(time.monotonic() - start.began)

    def answer(self, question: Question) -> Answer:
        if isinstance(question, AskForced):
            return self.force(question.prompt, question.tokens)
        return ask_engine(self, question)

    @torch.inference_mode()
    def force(self, prompt: list[int], tokens: list[int]) -> GreedyTokens:
        rows = self._model(torch.tensor([[*prompt, *tokens[:-1]]]), logits_to_keep=len(tokens)).logits[0]
        return GreedyTokens(tokens, [row.float().numpy().tobytes() for row in rows])

    @torch.inference_mode()
    def greedy(self, prompt: list[int], tokens: int) -> GreedyTokens:
        made = self._model.generate(
            torch.tensor([prompt]), max_new_tokens=tokens, return_dict_in_generate=True, output_logits=True
        )
        logits = [row[0].float().numpy().tobytes() for row in made.logits]
        return GreedyTokens(made.sequences[0, len(prompt) :].tolist(), logits)

    @torch.inference_mode()
    def prefill(self, prompts: Prompts) -> StepSeconds:
        ids, watch = torch.tensor(prompts), Stopwatch()
        self._model.generate(ids, max_new_tokens=1)
        watch.mark()
        return watch.took()

    @torch.inference_mode()
    def decode(self, prompts: Prompts, steps: int) -> StepSeconds:
        """The first token comes with the prefill, and is not counted."""
        marks = EachToken()
        self._model.generate(
            torch.tensor(prompts), max_new_tokens=1 + steps, stopping_criteria=StoppingCriteriaList([marks])
        )
        return marks.watch.took()


class EachToken(StoppingCriteria):
    """Marks when every row has gained a token, and stops nothing. The watch runs from the first token on."""

    def __init__(self) -> None:
        self._has_begun = False
        self.watch = Stopwatch()

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: object) -> torch.Tensor:
        if self._has_begun:
            self.watch.mark()
        else:
            self._has_begun, self.watch = True, Stopwatch()
        return torch.zeros(len(input_ids), dtype=torch.bool)


def main(descriptor: int) -> None:
    serve(descriptor, Transformers)
