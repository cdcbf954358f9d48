"""What BlitzScale says of serving while parameters arrive: the real queue and the integer program, played through."""

import itertools
import time
from collections.abc import Sequence

from livescale.load.bench.zigzag.late import LAYERS as LATE_LAYERS
from livescale.load.bench.zigzag.late import late_share
from livescale.load.claims.claim import Band, Claim, Exact, Measured, Order, cannot, one, several
from livescale.load.claims.workbench import Workbench
from livescale.services.worker.live.optimum import solve
from livescale.services.worker.live.policy import BEST_EFFORT, OFF, ZIGZAG, LiveTask, Rule
from livescale.services.worker.live.simulation import SOURCE, Simulation, simulate

PAPER = "BlitzScale"
LAYERS, LOAD, REQUESTS = 7, 6, 7  # those of the example: a load takes as long as six layers
READY = [float(LOAD * layer) for layer in range(LAYERS)]
SOME = [0, 0, 0, 0, 7, 7, 7]  # arrivals with which both of the paper's numbers hold
DOZEN, MODEL_LAYERS, LOADS = 12, 32, (1.0, 2.0, 3.3, 6.0, 10.0)
PASSES = 3
STOPS = (3.0, 4.0, 8.0, 15.0)  # of a block, in layer times
NEVER = 1e6
COUNT = 60


def tasks_at(arrivals: Sequence[float]) -> list[LiveTask]:
    return [LiveTask(f"{number:02}", float(at)) for number, at in enumerate(arrivals, 1)]


def played(arrivals: Sequence[float], rule: Rule = ZIGZAG) -> Simulation:
    return simulate(tasks_at(arrivals), READY, rule)


def first_three(bench: Workbench) -> Measured:
    run = played([0] * REQUESTS)
    note = f"On the source, {', '.join(str(run.layers_run(SOURCE, id)) for id in ('01', '02', '03'))} of seven layers."
    return several(*((f"request {number}", run.ends[f"0{number}"]) for number in (1, 2, 3)), note=note)


def request_seven(bench: Workbench) -> Measured:
    found = [played(SOME, rule).ends["07"] - SOME[-1] for rule in (BEST_EFFORT, ZIGZAG)]
    waiting = [played([0] * REQUESTS, rule).ends["07"] for rule in (BEST_EFFORT, ZIGZAG)]
    note = f"With all seven waiting from the start it is {waiting[0]:g} and {waiting[1]:g}."
    return several(("best effort", found[0]), ("ZigZag", found[1]), note=note)


def rate(loaded: int, layers: int) -> float:
    """Batches in the time of one alone, with no more than so many layers, once the target ran ahead."""
    ready = [0.0] * loaded + [NEVER] * (layers - loaded)
    ends = simulate(tasks_at([0.0] * COUNT), ready).ends
    half = COUNT // 2
    return layers * (COUNT - half) / (ends[f"{COUNT:02}"] - ends[f"{half:02}"])


def rates(bench: Workbench) -> Measured:
    return several(("no layer", rate(0, LAYERS)), ("one layer", rate(1, LAYERS)), ("half of the layers", rate(4, 8)))


def solving(bench: Workbench) -> Measured:
    """Milliseconds of CPU, the least of some passes: what else runs on the machine is not the program's."""
    found = [(f"load {load:g}", min(1e3 * cpu_seconds(load) for _ in range(PASSES))) for load in LOADS]
    return several(*found)


def cpu_seconds(load: float) -> float:
    began = time.process_time()
    solve(tasks_at([0.0] * DOZEN), [load * layer for layer in range(MODEL_LAYERS)])
    return time.process_time() - began


def against_optimum(bench: Workbench) -> Measured:
    found = []
    for load in LOADS:
        ready = [load * layer for layer in range(MODEL_LAYERS)]
        tasks = tasks_at([0.0] * DOZEN)
        ratio = simulate(tasks, ready).mean_latency / solve(tasks, ready).mean_latency
        found.append((f"load {load:g}", ratio))
    return several(*found)


def against_best_effort(bench: Workbench) -> Measured:
    runs = [played([0] * DOZEN, rule).mean_latency for rule in (ZIGZAG, BEST_EFFORT, OFF)]
    return several(*zip(("ZigZag", "best effort", "stopping"), runs, strict=True))


def no_earlier_layer(bench: Workbench) -> Measured:
    """How often a layer runs before its block, or out of order, in the example by each rule."""
    wrong, rules = 0, list[Rule]((ZIGZAG, BEST_EFFORT, OFF))
    arrivals: list[list[int]] = [[0] * DOZEN, list(range(0, 60, 5))]
    for rule, coming in itertools.product(rules, arrivals):
        run = played(coming, rule)
        for task in run.tasks:
            spans = sorted((span for span in run.spans if span.task == task.id), key=lambda span: span.start)
            wrong += [span.first for span in spans] != [0, *(span.stop for span in spans[:-1])]
            wrong += sum(span.where != SOURCE and span.start < READY[span.first] for span in spans)
    return one(wrong)


def while_loading(bench: Workbench) -> Measured:
    """Batches that end before the last block is there."""
    ready = [float(LOAD * layer) for layer in range(24)]
    counts = [
        sum(end <= ready[-1] for end in simulate(tasks_at([0.0] * DOZEN), ready, rule).ends.values())
        for rule in (OFF, ZIGZAG)
    ]
    return several(("stopping", counts[0]), ("live", counts[1]))


def late_by_stop(bench: Workbench) -> Measured:
    shares = []
    for load in STOPS:
        ready = [load * (layer + 1) for layer in range(LATE_LAYERS)]
        shares.append((f"load {load:g}", late_share(ready, OFF)))
    return several(*shares)


CLAIMS = (
    Claim(
        id="blitz-fig15-request-3",
        source=f"{PAPER} Fig. 15",
        says="Request 3 ends at 17.",
        setting="seven layers, a load takes six layer times, seven requests wait at clock 0",
        bound=Exact((7, 12, 17), "layer times"),
        measure=first_three,
    ),
    Claim(
        id="blitz-fig15-request-7",
        source=f"{PAPER} Fig. 15",
        says="The time of request 7 goes from 32 to 22.",
        setting="the same, but four requests wait at 0 and three come at 7",
        bound=Exact((32, 22), "layer times"),
        measure=request_seven,
        calibrated="The arrivals are in the picture only; these were chosen because both numbers hold with them.",
    ),
    Claim(
        id="blitz-fig15-rate",
        source=f"{PAPER} 5.2",
        says="Throughput goes from 1/7 to 1/6 with the first layer, and is doubled with half of the layers.",
        setting="a target that gets no further layers; batches in the time of one alone",
        bound=Exact((1.0, 7 / 6, 2.0), "", 0.035),
        measure=rates,
    ),
    Claim(
        id="blitz-ilp",
        source=f"{PAPER} 5.2",
        says="The integer program is solved in less than 40 ms for Llama3-8B.",
        setting="32 layers, a dozen equal batches, loads of 1 to 10 layer times, on this machine",
        bound=Band("< 40 ms", 0.0, 40.0, "ms"),
        measure=solving,
    ),
    Claim(
        id="blitz-ilp-free",
        source=f"{PAPER} 5.2, Fig. 16",
        says="The queue does without the program what the program would do.",
        setting="mean latency against the optimum: 32 layers, a dozen equal batches",
        bound=Band("1", 0.0, 1.05),
        measure=against_optimum,
    ),
    Claim(
        id="blitz-zigzag",
        source=f"{PAPER} 5.2",
        says="ZigZag has less latency than best effort, and that less than to stop.",
        setting="seven layers, a load takes six layer times, a dozen batches wait",
        bound=Order("ZigZag < best effort < stopping", "layer times"),
        measure=against_best_effort,
    ),
    Claim(
        id="blitz-c1",
        source=f"{PAPER} 5.2, (1)",
        says="Every layer of a request runs once, in order, and not before its block.",
        setting="the example, by three rules, for requests that wait and that come",
        bound=Exact((0,), "violations"),
        measure=no_earlier_layer,
    ),
    Claim(
        id="blitz-fig21-tokens",
        source=f"{PAPER} Fig. 21",
        says="Tokens come from instances that have a few layers only.",
        setting="24 layers, a load takes six layer times; batches that end before the last block",
        bound=Order("stopping < live", "batches"),
        measure=while_loading,
    ),
    Claim(
        id="blitz-fig3-stop",
        source=f"{PAPER} Fig. 3",
        says="The longer a new instance stops, the more requests violate the SLO.",
        setting="bursts at 1.5 times what an instance can do, five seeds; blocks that take 3 to 15 layer times",
        bound=Order("grows with the stop", "share late"),
        measure=late_by_stop,
    ),
    cannot(
        "blitz-ilp-c3",
        f"{PAPER} 5.2, (1)",
        "C3 is how loads limit the program.",
        "As it is printed, no schedule of the paper's own example satisfies it. What is solved is what it means: a "
        "layer starts once its load time has passed.",
    ),
)
