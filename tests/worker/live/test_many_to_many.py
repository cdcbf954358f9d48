"""Many sources pull from many targets, in every order of events: what always holds."""

import random
from collections import Counter

import pytest

from livescale.services.worker.live.policy import (
    ALONE,
    BEST_EFFORT,
    OFF,
    ZIGZAG,
    AskTarget,
    BatchBudget,
    FinishTask,
    GiveBack,
    GiveTask,
    LiveTask,
    QueueEffect,
    Release,
    Rule,
    RunLayer,
    SourceEffect,
    SourcePolicy,
)
from livescale.services.worker.live.queue import LiveQueue, QueuePhase

LAYERS, TARGETS, SOURCES, TASKS = 5, 3, 2, 20
SEEDS = range(15)


class Fleet:
    """Targets that load at their own pace and sources, with messages that arrive at once."""

    def __init__(self, seed: int, rule: Rule, budget: BatchBudget = ALONE) -> None:
        self.chance = random.Random(seed)
        self.budget = budget
        self.queues = {f"t{number}": LiveQueue(LAYERS, rule=rule, budget=budget) for number in range(TARGETS)}
        self.running: set[str] = set()
        self.sources = {f"s{number}": SourcePolicy() for number in range(SOURCES)}
        self.held: dict[str, list[tuple[LiveTask, int]]] = {source: [] for source in self.sources}
        self.tasks = {
            f"{number:02}": LiveTask(f"{number:02}", float(number), rows=1 + number % 3) for number in range(TASKS)
        }
        self.coming = sorted(self.tasks)
        self.layers_run: Counter[str] = Counter()
        self.ended: list[str] = []
        for source in self.sources.values():
            for target in self.queues:
                source.help(target)

    def step(self) -> None:
        target, source = self.chance.choice(sorted(self.queues)), self.chance.choice(sorted(self.sources))
        self.chance.choice((self.arrive, self.load, self.work, self.work, self.work))(target)
        self.help(source)
        for queue in self.queues.values():
            queue.check_invariants()
        for each in self.sources.values():
            each.check_invariants()

    def arrive(self, target: str) -> None:
        if self.coming and self.queues[target].phase is not QueuePhase.ABORTED:
            self.perform(target, self.queues[target].append(self.tasks[self.coming.pop(0)]))

    def load(self, target: str) -> None:
        queue = self.queues[target]
        if queue.loaded < LAYERS and self.chance.random() < 0.3:
            self.perform(target, queue.block_ready(queue.loaded))

    def work(self, target: str) -> None:
        if target in self.running:
            self.running.remove(target)
            self.perform(target, self.queues[target].layer_done())
        else:
            self.perform(target, self.queues[target].next())

    def help(self, name: str) -> None:
        if self.held[name]:
            task, done = self.held[name].pop(0)
            self.layers_run[task.id] += LAYERS - done
            self.ended.append(task.id)
        self.ask(name, self.sources[name].idle(len(self.held[name])))

    def ask(self, name: str, effects: tuple[SourceEffect, ...]) -> None:
        for effect in effects:
            if isinstance(effect, AskTarget):
                self.perform(effect.target, self.queues[effect.target].pull(name, self.budget))
                if not self.queues[effect.target]:
                    self.ask(name, self.sources[name].nothing(effect.target))
            else:
                self.queues[effect.target].withdraw(name)

    def abort(self, target: str) -> None:
        self.perform(target, self.queues[target].abort("its link broke"))

    def perform(self, target: str, effects: tuple[QueueEffect, ...]) -> None:
        for effect in effects:
            match effect:
                case RunLayer(tasks, layer):
                    assert layer < self.queues[target].loaded
                    assert len(tasks) == 1 or sum(self.tasks[task].rows for task in tasks) <= self.budget.rows
                    for task in tasks:
                        assert layer == self.layers_run[task], "each layer once, in order"
                        self.layers_run[task] += 1
                    self.running.add(target)
                case GiveTask(task, source, done):
                    assert done == self.layers_run[task]
                    self.held[source].append((self.tasks[task], done))
                    more = len(self.queues[target]) > 0
                    self.ask(source, self.sources[source].busy(target, more=more))
                case FinishTask(task):
                    self.ended.append(task)
                case Release(source):
                    self.sources[source].leave(target)
                case GiveBack(task, done):
                    # What was computed is lost with the target, and another begins anew.
                    self.layers_run[task] = 0
                    other = next(each for each in self.queues if self.queues[each].phase is not QueuePhase.ABORTED)
                    self.perform(other, self.queues[other].append(self.tasks[task]))


@pytest.mark.parametrize("rule", [ZIGZAG, BEST_EFFORT, OFF], ids=["zigzag", "best-effort", "off"])
@pytest.mark.parametrize("budget", [ALONE, BatchBudget(4, 6)], ids=["alone", "together"])
def test_every_task_ends_once_and_each_layer_of_it_runs_once(rule: Rule, budget: BatchBudget) -> None:
    for seed in SEEDS:
        fleet = Fleet(seed, rule, budget)
        for _ in range(600):
            fleet.step()
        assert sorted(fleet.ended) == sorted(fleet.tasks), seed
        assert set(fleet.layers_run.values()) == {LAYERS}, seed
        assert all(len(queue) == 0 and queue.phase is QueuePhase.PLAIN for queue in fleet.queues.values()), seed
        assert not any(source.helps for source in fleet.sources.values()), seed


def test_tasks_of_a_target_that_aborts_end_elsewhere() -> None:
    for seed in SEEDS:
        fleet = Fleet(seed, ZIGZAG)
        for _ in range(fleet.chance.randrange(5, 60)):
            fleet.step()
        fleet.abort("t1")
        for _ in range(600):
            fleet.step()
        assert sorted(fleet.ended) == sorted(fleet.tasks), seed
        assert not fleet.queues["t1"], seed
