"""lm-eval: local tasks by its client of completions, against its own backend of transformers in float32."""

import sys
from typing import Any

import lm_eval
from lm_eval.tasks import TaskManager

URL, MODEL, TASKS = sys.argv[1:]
TOLERANCE = 1e-4
SCORED, GENERATED = ("local_choice", "local_perplexity"), "local_generate"
tasks = TaskManager(include_path=TASKS, include_defaults=False)


def evaluate(kind: str, names: list[str], **how: Any) -> dict[str, list[Any]]:
    """The answers to each document of each task, in order."""
    made = lm_eval.simple_evaluate(kind, tasks=names, task_manager=tasks, log_samples=True, bootstrap_iters=0, **how)
    samples = {name: sorted(made["samples"][name], key=lambda one: one["doc_id"]) for name in names}
    return {name: [one["resps"] for one in samples[name]] for name in names}


def numbers(answers: Any) -> list[float]:
    """All log-likelihoods among nested answers; whether a text is the likeliest is left out."""
    if isinstance(answers, list | tuple):
        return [number for answer in answers for number in numbers(answer)]
    return [] if isinstance(answers, bool) else [float(answers)]


wanted = evaluate("hf", [*SCORED, GENERATED], model_args=f"pretrained={MODEL},dtype=float32", device="cpu")
# The tokenizer begins texts with a token of its own, which its own backend knows and the client has to be told.
place = f"model=m,num_concurrent=2,max_retries=1,tokenizer_backend=huggingface,tokenizer={MODEL}"
told = f"{place},base_url={URL}/v1/completions,max_length=256,add_bos_token=True,tokenized_requests=True"
found = evaluate("local-completions", [*SCORED, GENERATED], model_args=told)
for name in SCORED:
    pairs = list(zip(numbers(wanted[name]), numbers(found[name]), strict=True))
    largest = max(abs(one - other) for one, other in pairs)
    print(f"{name}: {len(pairs)} log-likelihoods, largest difference {largest:.1e}")
    assert largest <= TOLERANCE
assert wanted[GENERATED] == found[GENERATED]
chat = f"model=m,num_concurrent=2,max_retries=1,base_url={URL}/v1/chat/completions"
assert len(evaluate("local-chat-completions", [GENERATED], model_args=chat, apply_chat_template=True)[GENERATED]) == 3
