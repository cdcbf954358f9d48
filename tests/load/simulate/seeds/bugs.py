"""Bugs to plant into the product, by which the random systems are measured. Written down before their invariants were.

Each is a text of one file that is replaced by another. Those with a commit were in this repository once: the commit
mended them.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Bug:
    """What goes wrong, in which file, and how: `old` is there exactly once, and becomes `new`.

    `found_by`: a seed of 500,000 to 500,999, 600,100 to 600,999 or 970,000 to 970,999 that finds it, and holds without
    it; None where none of those that were tried does. No rule and no fault was made by looking at these seeds, but for
    one rule: that nothing is taken back came of seed 500,674. Of the last thousand, the four that broke a rule without
    any bug were looked at, and the product was mended; of the others none was. `hidden`: why no seed can find it.
    """

    name: str
    what: str
    file: str
    old: str
    new: str
    commit: str = ""
    found_by: int | None = None
    hidden: str = ""


BUGS = [
    Bug(
        "suspects-stay-shut",
        "The registry's word that a suspect lives gets lost, and the router never uses that worker again.",
        "services/router/fleet.py",
        "        self._suspects.discard(report.id)  # it was",
        "        # it was",
        "12430827",
        found_by=500022,
    ),
    Bug(
        "reader-believed",
        "The word that a host has read a model is lost, and the registry waits for it for ever.",
        "services/registry/pool.py",
        "if holding.model in self._models and is_whole(holding, holding.version):",
        "if False:",
        "3d5c8d41",
        found_by=500008,
    ),
    Bug(
        "deaf-registry",
        "A registry that nothing reaches declares everybody dead.",
        "services/registry/leases.py",
        "if self._is_deaf(now) else",
        "if False else",
        "2e370add",
        found_by=500045,
    ),
    Bug(
        "epochs-given-twice",
        "A registry that is started again gives out epochs that the one before gave out.",
        "services/registry/leases.py",
        "        self._last_epoch = last_epoch\n",
        "        self._last_epoch = 0\n",
        "317c8d83",
        found_by=500058,
    ),
    Bug(
        "loading-takes-nothing",
        "What a worker takes over before it says that it serves is taken for lost by the router.",
        "services/router/fleet.py",
        'report.rank == 0 and report.state != "spare"',
        'report.rank == 0 and report.state in ("serving", "live", "draining")',
        "8d844cc3",
        found_by=970141,
    ),
    Bug(
        "move-forgotten",
        "A move that the router hears before the answer of the worker that gave the request away is forgotten.",
        "services/router/instances.py",
        "        if not self.learned:\n            self._given.add(request_id)\n",
        "",
        "a975a64b",
    ),
    Bug(
        "old-secret",
        "Flows of a planner that took a plan over are proved by the first planner's secret, and stay silent.",
        "services/worker/instance/loading.py",
        "if self._incoming.follow(command.inflows, command.secret)",
        "if self._incoming.follow(command.inflows, self.command.secret)",
        "d0da45a8",
        found_by=500200,
    ),
    Bug(
        "hand-offs-unchecked",
        "Activations and KV that arrive damaged in a hand-off are used.",
        "services/worker/instance/context.py",
        "if sent != await _digest(data):",
        "if False:",
        "bf0dce88",
        found_by=500572,
    ),
    Bug(
        "drained-refuses",
        "A worker that has drained refuses the command to drain when it comes again.",
        "services/worker/instance/lifecycle.py",
        "if command.instance == self._drained:",
        "if False:",
        "49f09f0e",
        found_by=500144,
    ),
    Bug(
        "dead-target-awaited",
        "A source waits for what a dead target was going to send it.",
        "services/worker/live/source.py",
        "                hand_off.abandon()\n",
        "                pass\n",
        "1d45480f",
        found_by=500494,
    ),
    Bug(
        "office-crash",
        "A router whose term has ended answers a request with a crash.",
        "services/router/office.py",
        "            finally:\n                self.tenure.end()\n",
        "            finally:\n                pass\n",
        "2f47ac93",
        hidden="A process takes no more calls, and answers those in hand, before it ends; a killed one hears nothing. "
        "So no request meets a term that was cut short.",
    ),
    Bug(
        "ends-told-once",
        "After an outage of the bus a worker does not tell again which requests have ended.",
        "services/worker/instance/frames.py",
        "ended = self.history.ended() if connected else []",
        "ended = list[str]()",
        "7256d15d",
        found_by=970068,
    ),
    Bug(
        "router-back-from-sleep",
        "A router that slept acts at once, although another may be in office and it missed what happened.",
        "services/router/standby.py",
        "if slept >= AWAY_SECONDS:",
        "if False:",
        "d62433b1",
        found_by=970100,
    ),
    Bug(
        "blocks-unverified",
        "A block with a wrong checksum is laid out and run.",
        "shared/transfer/receiver.py",
        "if found == block.checksum:",
        "if True:",
        found_by=500007,
    ),
    Bug(
        "any-epoch-obeyed",
        "A worker obeys commands that were meant for an earlier life of it.",
        "services/worker/actor.py",
        "if command.epoch != self._membership.epoch:",
        "if False:",
        found_by=600114,
    ),
    Bug(
        "stretch-grows-over-neighbour",
        "A request whose KV grows is given a block that another one owns.",
        "services/worker/kv/block_manager.py",
        "if after < len(self._stretches) and self._stretches[after].blocks.start == stop:",
        "if False:",
        found_by=500023,
    ),
    Bug(
        "half-of-the-bytes-counted",
        "Links carry twice what they can: only half of each message counts.",
        "shared/simulation/fair_flows.py",
        "self.messages[0].left / self.rate if",
        "self.messages[0].left / 2 / self.rate if",
        found_by=500000,
    ),
    Bug(
        "drain-without-waiting",
        "A worker that is to drain does not wait for the requests that it has.",
        "services/worker/deployment.py",
        "        await self._serving.idle.wait()\n",
        "",
        found_by=500029,
    ),
    Bug(
        "broken-flow-ignored",
        "The planner does not look for another way when a transfer breaks off.",
        "services/planner/scale_out.py",
        'if event.state == "broken":',
        'if event.state == "broken" and self.ended:',
        found_by=500128,
    ),
    Bug(
        "reservation-kept",
        "KV blocks that were kept for a request of another worker stay taken when it is given up.",
        "services/worker/scheduling/reservations.py",
        "        if reservation.wanted or reservation.written:\n            return False\n",
        "        if reservation.wanted or not reservation.written:\n            return False\n",
        found_by=600262,
    ),
    Bug(
        "replay-off-by-one",
        "A gateway that gets a token again hands it to its client twice.",
        "services/gateway/progress.py",
        "known = self.received - row.index",
        "known = max(self.received - row.index - 1, 0)",
        found_by=500004,
    ),
    Bug(
        "live-one-layer-early",
        "A worker that loads runs a layer whose block is not there yet.",
        "services/worker/live/target.py",
        "        self._perform(self.queue.block_ready(layer))\n",
        "        for one in (layer, layer + 1):\n            self._perform(self.queue.block_ready(one))\n",
        found_by=500000,
    ),
    Bug(
        "last-copy-dropped",
        "The registry does not have a model read again whose only copy is gone.",
        "services/registry/pool.py",
        "        self.holds.gone(id)\n        self.doubt_host(id)\n",
        "        self.holds.gone(id)\n",
        found_by=500196,
    ),
    Bug(
        "ranks-taken-back",
        "A worker that is given up for another model's ranks is taken back at once, again and again.",
        "services/monitor/verdict.py",
        'could = one.verdict.action == "out" or one.verdict.rule in',
        "could = one.verdict.rule in",
        "a637dd56",
        found_by=500063,
    ),
    Bug(
        "given-up-twice",
        "A KV transfer that is given up for two reasons at once leaves the blocks that were kept for it.",
        "services/worker/disaggregation/prefill.py",
        """            try:
                await end_tasks(work, watching)
            finally:
                self._settle(""",
        """            if True:
                work.cancel()
                watching.cancel()
                await asyncio.wait((work, watching))
                self._settle(""",
        "756d105f",
        found_by=600320,
    ),
]
