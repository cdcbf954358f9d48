"""vLLM's CPU build as a peer: its engine runs in this process and is stepped as its own loop does."""

import itertools
import os
import sys
import time
from pathlib import Path

# Read when vLLM is imported. What it compiles is kept with it.
os.environ.update(
    VLLM_CACHE_ROOT=str(Path(sys.prefix) / "cache"),
    VLLM_CPU_KVCACHE_SPACE="2",
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_NO_USAGE_STATS="1",
)

import numpy as np
import torch
from vllm import LLM, RequestOutput, SamplingParams

from livescale.load.peers.engine_process import Stopwatch, ask_engine, serve
from livescale.load.peers.protocol import Answer, GreedyTokens, Prompts, Question, Ready, StartEngine, StepSeconds

CONTEXT = 2_304
ROWS = 32


class Vllm:
    """With its own settings, but for what is measured: a thread, and no prompt is known from before."""

    def __init__(self, start: StartEngine) -> None:
        torch.set_num_threads(1)
        llm = LLM(
            start.checkpoint,
            dtype=start.dtype,
            skip_tokenizer_init=True,
            max_model_len=CONTEXT,
            max_num_seqs=ROWS,
            enable_prefix_caching=False,
            max_logprobs=-1,
            logprobs_mode="raw_logits",
        )
        self._engine = llm.llm_engine
        self._names = map(str, itertools.count())
        self.ready = Ready(time.monotonic() - start.began)

    def answer(self, question: Question) -> Answer:
        return ask_engine(self, question)

    def greedy(self, prompt: list[int], tokens: int) -> GreedyTokens:
        self._add(prompt, tokens, logprobs=-1)
        made = self._run()[-1].outputs[0]
        rows = [{token: one.logprob for token, one in row.items()} for row in made.logprobs or []]
        logits = [np.array([row[token] for token in range(len(row))], np.float32) for row in rows]
        return GreedyTokens(list(made.token_ids), [row.tobytes() for row in logits])

    def prefill(self, prompts: Prompts) -> StepSeconds:
        watch = Stopwatch()
        for prompt in prompts:
            self._add(prompt, 1)
        self._run()
        watch.mark()
        return watch.took()

    def decode(self, prompts: Prompts, steps: int) -> StepSeconds:
        """Measure the steps after the one that gave the last prompt its first token."""
        names = [self._add(prompt, CONTEXT - len(prompt)) for prompt in prompts]
        begun: set[str] = set()
        while len(begun) < len(names):
            begun |= {output.request_id for output in self._engine.step() if output.outputs[0].token_ids}
        watch = Stopwatch()
        for _ in range(steps):
            self._engine.step()
            watch.mark()
        took = watch.took()
        self._engine.abort_request(names)
        self._run()
        return took

    def _add(self, prompt: list[int], tokens: int, logprobs: int | None = None) -> str:
        name = next(self._names)
        sampling = SamplingParams(
            temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False, logprobs=logprobs
        )
        self._engine.add_request(name, {"prompt_token_ids": prompt}, sampling)
        return name

    def _run(self) -> list[RequestOutput]:
        """Run steps until no request is left."""
        outputs: list[RequestOutput] = []
        while self._engine.has_unfinished_requests():
            outputs += self._engine.step()
        return outputs


def main(descriptor: int) -> None:
    serve(descriptor, Vllm)
