"""The first token of a request at an instance that is still loading, with a schema and without."""

import asyncio
import json
import random
import shutil
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from itertools import count
from pathlib import Path
from statistics import median

import aiohttp

from livescale.load.bench.record import Record, measured
from livescale.load.bench.requests.choices import first_token
from livescale.load.bench.requests.schemas import make_schema
from livescale.load.bench.requests.wide import END, VOCAB_SIZE, make_wide_tokenizer
from livescale.load.bench.system import BY_HAND, MODEL, BenchSystem, Launcher, parameter_bytes
from livescale.load.bench.transfer.disk_model import write_llama
from livescale.load.client import open_session
from livescale.load.kept import KEPT
from livescale.services.worker.grammars.masks import Masks, Vocabulary

BENCH = "requests"
HIDDEN, INTERMEDIATE, LAYERS = 256, 1_024, 8
LOAD_SECONDS = 4.0
PROMPT_TOKENS, TOKENS = 64, 4
ANSWER_SECONDS = 120.0
MOST = 1.1
KINDS = ("without", "with")


def kept_wide_model(tell: Callable[[str], None]) -> Path:
    """A small checkpoint with 131,072 tokens, whose answers have no meaning. It is made the first time."""
    directory = KEPT / "models" / f"llama-wide-{LAYERS}"
    if not directory.exists():
        tell(f"Making a checkpoint of {VOCAB_SIZE} tokens in {directory}, this once ...")
        made = directory.with_suffix(".part")
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir(parents=True)
        write_llama(made, VOCAB_SIZE, HIDDEN, INTERMEDIATE, LAYERS)
        config = json.loads((made / "config.json").read_text())
        (made / "config.json").write_text(json.dumps({**config, "eos_token_id": END}))
        (made / "tokenizer.json").write_bytes(make_wide_tokenizer())
        (made / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>"}))
        made.rename(directory)
    return directory


async def measure_loading(launcher: Launcher, checkpoint: Path, repeats: int) -> Sequence[Record]:
    """Ask in turns with a schema and without, each time as the only instance begins to load."""
    progress, numbers = launcher.progress, count()
    seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    async with (
        _start(launcher, checkpoint) as system,
        open_session(system.url, "", ANSWER_SECONDS) as session,
    ):
        async with session.post("tokenize", json={"model": MODEL, "prompt": "a"}) as known:
            await known.read()  # a gateway reads a tokenizer once, which is no part of this
        for repeat in range(-1, repeats):  # the first one warms up
            for kind in KINDS:
                progress(f"an instance loads, and is asked {kind} a schema")
                took = await _first_token(system, session, request_body(next(numbers), by_schema=kind == "with"))
                if repeat >= 0:
                    seconds[kind].append(took)
    progress("the vocabulary alone is learned")
    learned = await asyncio.to_thread(learn_seconds)
    # What a request with a schema waits for at most, while parameters arrive.
    return [*loading_rows(seconds), measured(BENCH, "the vocabulary is learned in", 1e3 * learned, "ms")]


def learn_seconds() -> float:
    """Seconds until a process of masks knows a vocabulary of 131,072 tokens."""
    masks = Masks(Vocabulary(zlib.compress(make_wide_tokenizer(), 1), (END,)), VOCAB_SIZE)
    begun = time.perf_counter()
    try:
        masks.start()
        return time.perf_counter() - begun
    finally:
        masks.close()


def _start(launcher: Launcher, checkpoint: Path) -> AbstractAsyncContextManager[BenchSystem]:
    """No instance at first, and the monitor leaves everything as it is."""
    return launcher.start(
        checkpoint,
        {"min_instances": 0, "max_instances": 1, **BY_HAND},
        workers=1,
        dtype="bfloat16",
        share_memory="off",
        keep_parameters=False,  # each scale is to move them
        link_rate=parameter_bytes(checkpoint) / LOAD_SECONDS,
    )


def loading_rows(seconds: Mapping[str, Sequence[float]]) -> Sequence[Record]:
    """The median with a schema against that without, in milliseconds."""
    plain, by_schema = (1e3 * median(seconds[kind]) for kind in KINDS)
    case = "first token at an instance that loads, with a schema"
    return [measured(BENCH, case, by_schema, "ms", plain, at_most=MOST)]


async def _first_token(system: BenchSystem, session: aiohttp.ClientSession, body: Mapping[str, object]) -> float:
    """Seconds until the first token of a request that waits for the instance. There is none before and afterwards."""
    begun = time.perf_counter()
    asking = asyncio.create_task(first_token(session, body))
    await system.scale(1)
    at = await asking
    await system.watch.until_quiet()
    await system.scale(0)
    return at - begun


def request_body(number: int, *, by_schema: bool) -> dict[str, object]:
    """Request `number`, whose answer follows a schema that no other one has, or none."""
    body: dict[str, object] = {
        "model": MODEL,
        "prompt": random.Random(number).choices(range(300, VOCAB_SIZE), k=PROMPT_TOKENS),
        "max_tokens": TOKENS,
        "temperature": 1.0,
        "seed": number,
        "stream": True,
        "return_token_ids": True,
    }
    if not by_schema:
        return {**body, "ignore_eos": True}
    form = {"type": "json_schema", "json_schema": {"name": "thing", "schema": make_schema(number)}}
    return {**body, "response_format": form}
