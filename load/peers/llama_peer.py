"""llama.cpp by its C interface: parameters in bfloat16 and in memory, its own settings for everything else."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import llama_cpp.llama_cpp as llama
import numpy as np
import numpy.typing as npt

from livescale.load.peers.gguf_file import gguf_of
from livescale.load.peers.member import ask_engine, serve
from livescale.load.peers.questions import Answer, Chosen, Prompts, Question, Ready, Start, Took
from livescale.load.peers.stopwatch import Stopwatch

BATCH = 2_048
LONG, LONG_ROWS = 2_304, 4  # tokens of a request that is prefilled, and how many at a time
SHORT, SHORT_ROWS = 256, 32  # of one that decodes

ERROR = 4  # ggml's level

Logits = npt.NDArray[np.float32]


def log_errors(level: int, text: bytes, _: object) -> None:
    """Of all that it says, which is much."""
    if level == ERROR:
        sys.stderr.write(text.decode())


class LlamaCpp:
    """Two contexts of one model: a cache has the same room for every sequence."""

    def __init__(self, start: Start) -> None:
        self._log = llama.llama_log_callback(log_errors)  # in use until the process ends
        llama.llama_log_set(self._log, None)
        llama.llama_backend_init()
        before = time.monotonic()
        path = gguf_of(Path(start.checkpoint))
        converting = time.monotonic() - before  # once, and no part of a start
        parameters = llama.llama_model_default_params()
        parameters.use_mmap = False  # in memory with huge pages, as all others have it
        self._model = llama.llama_model_load_from_file(str(path).encode(), parameters)
        if not self._model:
            raise ValueError(f"{path}: llama.cpp does not load it")
        vocabulary = llama.llama_model_get_vocab(self._model)
        self._vocab_size = llama.llama_vocab_n_tokens(vocabulary)
        self._long = self._context(LONG, LONG_ROWS)
        self._short = self._context(SHORT, SHORT_ROWS)
        self.ready = Ready(time.monotonic() - start.began - converting)

    def answer(self, question: Question) -> Answer:
        return ask_engine(self, question)

    def greedy(self, prompt: list[int], tokens: int) -> Chosen:
        rows = [self._run(self._short, [prompt], 0)[0]]
        for place in range(len(prompt), len(prompt) + tokens - 1):
            rows.append(self._run(self._short, [[int(rows[-1].argmax())]], place)[0])
        self._forget(self._short)
        return Chosen([int(row.argmax()) for row in rows], [row.tobytes() for row in rows])

    def prefill(self, prompts: Prompts) -> Took:
        watch = Stopwatch()
        chosen(self._run(self._long, prompts, 0))
        watch.mark()
        self._forget(self._long)
        return watch.took()

    def decode(self, prompts: Prompts, steps: int) -> Took:
        tokens = chosen(self._run(self._short, prompts, 0))
        watch = Stopwatch()
        for step in range(steps):
            tokens = chosen(self._run(self._short, tokens, len(prompts[0]) + step))
            watch.mark()
        self._forget(self._short)
        return watch.took()

    def _context(self, tokens: int, rows: int) -> llama.llama_context_p:
        parameters = llama.llama_context_default_params()
        parameters.n_ctx, parameters.n_seq_max = tokens * rows, rows
        parameters.n_batch = BATCH
        parameters.n_threads = parameters.n_threads_batch = 1
        parameters.no_perf = True
        context = llama.llama_init_from_model(self._model, parameters)
        if not context:
            raise ValueError(f"llama.cpp makes no context of {rows} sequences of {tokens} tokens")
        return context

    def _run(self, context: llama.llama_context_p, prompts: Sequence[Sequence[int]], start: int) -> list[Logits]:
        """The logits after each of these, which begin at position `start`; all in as few calls as batches allow."""
        rows = [
            (token, start + place, number, place == len(prompt) - 1)
            for number, prompt in enumerate(prompts)
            for place, token in enumerate(prompt)
        ]
        logits: list[Logits] = []
        for first in range(0, len(rows), BATCH):
            logits += self._batch(context, rows[first : first + BATCH])
        return logits

    def _batch(self, context: llama.llama_context_p, rows: Sequence[tuple[int, int, int, bool]]) -> list[Logits]:
        batch = llama.llama_batch_init(len(rows), 0, 1)
        batch.n_tokens = len(rows)
        for row, (token, position, sequence, draws) in enumerate(rows):
            batch.token[row], batch.pos[row], batch.logits[row] = token, position, draws
            batch.n_seq_id[row], batch.seq_id[row][0] = 1, sequence
        code = llama.llama_decode(context, batch)
        llama.llama_batch_free(batch)
        if code:
            raise RuntimeError(f"llama_decode answered {code}")
        drawn = [row for row, one in enumerate(rows) if one[3]]
        shape = (self._vocab_size,)
        return [np.ctypeslib.as_array(llama.llama_get_logits_ith(context, row), shape).copy() for row in drawn]

    def _forget(self, context: llama.llama_context_p) -> None:
        llama.llama_memory_clear(llama.llama_get_memory(context), False)


def chosen(rows: Sequence[Logits]) -> Prompts:
    """The likeliest of each, as what comes next."""
    return [[int(row.argmax())] for row in rows]


def main(descriptor: int) -> None:
    serve(descriptor, LlamaCpp)
