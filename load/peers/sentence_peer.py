"""sentence-transformers as a peer: the vectors of prompts of one length, as one batch."""

import time

import torch
from sentence_transformers import SentenceTransformer

from livescale.load.peers.engine_process import Stopwatch, serve
from livescale.load.peers.protocol import Answer, AskVectors, EngineFailed, Question, Ready, StartEngine, Vectors


class SentenceTransformers:
    """The model of a checkpoint, run on one thread."""

    def __init__(self, start: StartEngine) -> None:
        torch.set_num_threads(1)
        self._model = SentenceTransformer(
            start.checkpoint,
            device="cpu",
            local_files_only=True,
            model_kwargs={"dtype": getattr(torch, start.dtype), "attn_implementation": "sdpa"},
        ).eval()
        # Where it is read to, it lies in pages of its file: here as all others have it, in memory with huge pages.
        for parameter in self._model.parameters():
            parameter.data = parameter.data.clone()
        self.ready = Ready(time.monotonic() - start.began)

    @torch.inference_mode()
    def answer(self, question: Question) -> Answer:
        if not isinstance(question, AskVectors):
            return EngineFailed(f"vectors are all it makes, not {type(question).__name__}")
        watch = Stopwatch()
        ids = torch.tensor(question.prompts)
        given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)}
        made = self._model(given)["sentence_embedding"]
        watch.mark()
        return Vectors([row.float().numpy().tobytes() for row in made], watch.took())


def main(descriptor: int) -> None:
    serve(descriptor, SentenceTransformers)
