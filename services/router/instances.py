"""An instance as the router sees it: the worker's last report, and what was admitted to it. Pure."""

from collections.abc import Iterable
from math import ceil, inf

from livescale.services.router.admission import AHEAD_SECONDS, most_tokens
from livescale.services.router.requests import AdmissionState, AdmittedRequest, LastEnds, Promises, Waiting
from livescale.shared.messages.membership import EngineLoad, Role, WorkerReport, WorkerState
from livescale.shared.messages.requests import Running, Submit

UNMEASURED_TOKENS = 512  # the limit while the instance has not measured its speed
# A live instance gets twice as much, as its helper takes requests from its queue; more would be late. BlitzScale's
# authors allow four batches of 4,096 tokens at first and two later, which an 8B model prefills in 0.7 to 1.4 s.
LIVE_AHEAD_SECONDS = 1.0


class InstanceView:
    """An instance, seen through the reports of its leading worker (rank 0).

    Reports are always a little late, so the router counts what it admits at once: a slot, and KV blocks for the tokens
    that a request has by then. What a report shows beyond that was generated since, or was admitted by an earlier
    router. Nothing is admitted to any instance of a model before each of them has `learned`, that is, has said what it
    already runs.

    The number of tokens that will follow is unknown. Where they are too many for the KV cache, the worker preempts
    requests, and gets nothing new while a request waits there for blocks.
    """

    def __init__(self, worker: str, promises: Promises | None = None, ends: LastEnds | None = None) -> None:
        self.worker = worker
        self.role: Role | None = None
        self.host: str | None = None
        self._promises = promises or Promises()
        self._ends = ends or LastEnds()
        self.id: str | None = None
        self.epoch = 0
        self.model: str | None = None
        self.version: str | None = None
        self.state: WorkerState = "spare"
        self.admitted: dict[str, AdmittedRequest] = {}
        self.unpaired: dict[str, None] = {}  # those of its requests that it took before it was there to prefill
        self.learned = False
        self.refusing = False  # it has refused a request since its last report
        self.idle_since: float | None = None
        self.helping: frozenset[str] = frozenset()
        self.scale: str | None = None  # that added it
        self.open_since: float | None = None  # when it was first seen to take requests
        self.was_live = False  # so other workers may have taken requests over from it
        self._given: set[str] = set()  # requests that others took before this instance had said what it runs
        self._load: EngineLoad | None = None
        self._own_blocks = 0
        self._other_requests = 0
        self._other_blocks = 0
        self._new_tokens = 0  # tokens to prefill that no report counts yet

    @property
    def serves(self) -> bool:
        """Whether the instance may have requests: it serves, is live, or is draining."""
        return self.state in ("serving", "live", "draining")

    def goes_on(self, report: WorkerReport) -> bool:
        """Whether the report is of the same instance, and the instance has not gone back to loading."""
        return (report.epoch, report.instance) == (self.epoch, self.id) and not (
            self.serves and report.state == "loading"
        )

    def update(self, report: WorkerReport, now: float) -> None:
        """Take over what the worker reports about itself."""
        self.id, self.epoch, self.state = report.instance, report.epoch, report.state
        self.model, self.version, self.scale = report.model, report.version, report.plan_id
        if self.serves and self.open_since is None:
            self.open_since = now
        if report.role == "prefill" and self.role not in (None, "prefill"):
            for request_id, admission in self.admitted.items():
                admission.unpaired = True
                self.unpaired[request_id] = None
        self.role, self.host = report.role, report.host
        self.helping = frozenset(report.helping)
        self.was_live = self.was_live or report.state == "live"
        self._load = load = report.load
        self.refusing = False
        requests = 0 if load is None else load.waiting_requests + load.running_requests + load.reserved_requests
        if requests >= len(self.admitted):  # otherwise the report is older than the last admission
            self._new_tokens = 0
        blocks = 0 if load is None else load.kv_blocks_used
        self._other_requests = max(0, requests - len(self.admitted) - self._promises.requests(self.worker))
        self._other_blocks = max(0, blocks - self._own_blocks - self._promises.blocks(self.worker))
        if requests or load is None:
            self.idle_since = None
        elif self.idle_since is None:
            self.idle_since = now

    def admit(self, waiting: Waiting, now: float, decode: str | None = None, *, has_prompt: bool = False) -> None:
        """Count a request that this router gives to the worker, also at the worker that is to `decode` it. With
        `has_prompt` it has the KV of the prompt."""
        request = waiting.request
        self._new_tokens += waiting.tokens if has_prompt else waiting.all_tokens
        admission = AdmittedRequest(request.gateway, waiting, self._need(request), now, decode=decode)
        admission.unpaired = self.state == "live"
        self.take(request.request_id, admission)
        if decode is not None:
            self._promises.keep(request.request_id, decode, admission.blocks)

    def adopt(self, running: Iterable[Running], now: float) -> None:
        """Take over requests that an earlier router admitted."""
        self.learned = True
        for one in running:
            is_gone = one.request_id in self._given or self.has_ended(one.request_id)
            if one.request_id not in self.admitted and not is_gone:
                adopted = AdmittedRequest(one.gateway, None, self._blocks(one.tokens), now, AdmissionState.RUNNING)
                self.take(one.request_id, adopted)

    def take(self, request_id: str, admission: AdmittedRequest) -> None:
        """Note that the request is here from now on, in place of what was kept for it here."""
        self.release(request_id)
        self.admitted[request_id] = admission
        self._own_blocks += admission.blocks
        if admission.unpaired:
            self.unpaired[request_id] = None

    def release(self, request_id: str) -> AdmittedRequest | None:
        """Note that the request is no longer here. Returns what was kept for it; None if it never was here."""
        admission = self.admitted.pop(request_id, None)
        self.unpaired.pop(request_id, None)
        if admission is not None and admission.decode is not None:
            self._promises.drop(request_id)
        self._own_blocks -= 0 if admission is None else admission.blocks
        return admission

    def give(self, request_id: str) -> AdmittedRequest | None:
        """Note that another worker has taken the request over. Returns what was kept for it; None where it is not known
        here. An answer that is still under way may say that it is here; it is then not adopted."""
        if not self.learned:
            self._given.add(request_id)
        return self.release(request_id)

    def end(self, request_id: str) -> AdmittedRequest | None:
        """Note that the request has ended here. Returns what was kept for it; None where it is not known here. That it
        came here, or is here, may still be heard; it is then not counted."""
        self._ends.note(request_id, self.worker)
        return self.release(request_id)

    def note_ended(self, request_ids: Iterable[str]) -> None:
        """Note that these have ended here, though their ends may have been told before this router listened. That they
        came here may still be heard."""
        for request_id in request_ids:
            admission = self.admitted.get(request_id)
            if admission is None or admission.confirmed:  # otherwise it is being given to the worker anew
                self.end(request_id)

    def has_ended(self, request_id: str) -> bool:
        """Whether the request ended here, and has not been taken anew by any worker."""
        return self._ends.holds(request_id, self.worker)

    def promise(self, request_id: str, decode: str) -> None:
        """Note that a request that is here is on its way to the worker `decode`, and will take as much there."""
        self.admitted[request_id].decode = decode
        self._promises.keep(request_id, decode, self.blocks_of(request_id))

    def keep(self, request_id: str) -> None:
        """Note that a request that is here stays, whatever was promised."""
        if request_id in self.admitted:
            self.admitted[request_id].decode = None
            self._promises.drop(request_id)

    def blocks_of(self, request_id: str) -> int:
        """The KV blocks that a request may have by now: at least as many as requests here have on average."""
        used, requests = 0 if self._load is None else self._load.kv_blocks_used, max(1, len(self.admitted))
        return max(self.admitted[request_id].blocks, ceil(used / requests))

    def miscounted(self) -> bool:
        """Whether the counted blocks differ from those of the requests."""
        return self._own_blocks != sum(admission.blocks for admission in self.admitted.values())

    @property
    def kv_tokens(self) -> int:
        """The number of tokens that fit into the KV cache; 0 while that is unknown."""
        return 0 if self._load is None else self._load.kv_blocks_total * self._load.kv_block_tokens

    def never_fits(self, request: Submit) -> bool:
        """Whether the request is larger than the whole KV cache. While the cache's size is unknown, every request may
        fit."""
        return self._load is not None and most_tokens(request) > self.kv_tokens

    def has_room(
        self, request: Submit, look_ahead: int, rate: float | None = None, ahead_seconds: float = AHEAD_SECONDS
    ) -> bool:
        """Whether the request could start here soon: there is a slot (or one of `look_ahead`), there are KV blocks, and
        less waits to be prefilled than takes `ahead_seconds`. `rate` is that of other instances, in tokens a second: a
        live one has none yet."""
        load = self._load
        if load is None or load.kv_full or self.never_fits(request):
            return False
        slots = load.max_requests + look_ahead - self.requests
        return slots > 0 and self._need(request) <= self.free_blocks and self._prefills_soon(load, rate, ahead_seconds)

    def has_room_beside(self, request: Submit) -> bool:
        """Whether there is a slot, and KV blocks, for a request whose prompt is kept here: little of it has to be
        prefilled."""
        load = self._load
        if load is None or load.kv_full or not load.keeps_prefixes or self.never_fits(request):
            return False
        return self.requests < load.max_requests and self._need(request) <= self.free_blocks

    def has_room_to_decode(self, request: Submit) -> bool:
        """Whether there is a slot for a request that another worker prefills, and KV blocks for it and one token.

        That requests wait there is no reason against it. Those that find no slot or no blocks show otherwise. Others
        wait for the next step only, and a worker that then gets nothing else says so half a second later.
        """
        tokens = len(request.prompt) + len(request.generated) + 1
        return not self.never_fits(request) and self.has_room_for(self._blocks(tokens))

    def has_room_for(self, blocks: int) -> bool:
        """Whether there is a slot, and so many free KV blocks, for a request that comes with its KV."""
        load = self._load
        return (
            load is not None and not load.kv_full and self.requests < load.max_requests and blocks <= self.free_blocks
        )

    @property
    def free_blocks(self) -> int:
        """KV blocks that nothing has, is given, or is promised; 0 while that is unknown."""
        return 0 if self._load is None else self._load.kv_blocks_total - self._taken_blocks

    def blocks_coming(self, sender: "InstanceView") -> int:
        """KV blocks of requests that come from other instances than this `sender`: they share the way into this one."""
        own = (one.blocks for one in sender.admitted.values() if one.decode == self.worker)
        return self._promises.blocks(self.worker) - sum(own)

    @property
    def load(self) -> EngineLoad | None:
        """What it last said of its engine; None before that."""
        return self._load

    @property
    def requests(self) -> int:
        """Requests that it has, is given, or is promised."""
        return len(self.admitted) + self._other_requests + self._promises.requests(self.worker)

    @property
    def decoding(self) -> int:
        """Requests that it was given to decode itself."""
        return sum(one.decode is None for one in self.admitted.values())

    def share(self) -> tuple[float, float]:
        """How full the instance is, from 0 to 1 and above: its slots, then its KV blocks."""
        load = self._load
        if load is None:
            return 1.0, 1.0
        return self.requests / max(1, load.max_requests), self._taken_blocks / max(1, load.kv_blocks_total)

    def wait_seconds(self, others: float | None) -> float:
        """How long the prompts take that wait to be prefilled here; without end where that is not known. `others` is
        the rate of other instances, in tokens a second."""
        load = self._load
        tokens, own = self._waiting_tokens, None if load is None else load.prefill_tokens_per_second
        rate = own or others
        return tokens / rate if rate else inf if tokens else 0.0

    @property
    def _waiting_tokens(self) -> int:
        """Prompt tokens that wait here, those that no report counts yet among them."""
        return self._new_tokens + (0 if self._load is None else self._load.waiting_tokens)

    @property
    def _taken_blocks(self) -> int:
        return self._own_blocks + self._other_blocks + self._promises.blocks(self.worker)

    def _prefills_soon(self, load: EngineLoad, others: float | None, ahead_seconds: float) -> bool:
        """Whether little waits to be prefilled. What a live instance gets is not limited where no other has measured
        its speed."""
        tokens, own = self._waiting_tokens, load.prefill_tokens_per_second
        if self.state == "live":
            rate = others if own is None else own
            return not tokens or rate is None or tokens < rate * LIVE_AHEAD_SECONDS
        return not tokens or tokens < (UNMEASURED_TOKENS if own is None else own * ahead_seconds)

    def _need(self, request: Submit) -> int:
        """The KV blocks for the tokens that the request has now."""
        return self._blocks(len(request.prompt) + len(request.generated))

    def _blocks(self, tokens: int) -> int:
        return 0 if self._load is None else ceil(tokens / self._load.kv_block_tokens)
