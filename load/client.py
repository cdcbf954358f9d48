"""A client that sends requests to an OpenAI-compatible server when they are due, and times each streamed token."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import msgspec

from livescale.load.records import Ask, RequestRecord
from livescale.load.stats import Tally
from livescale.shared.runtime.clock import Clock, SystemClock


class StreamedChoice(msgspec.Struct):
    """What counts of a choice in a streamed chunk."""

    token_ids: list[int] | None = None
    finish_reason: str | None = None


class StreamedError(msgspec.Struct):
    """The error object of OpenAI's API, as far as it is told on."""

    message: str = ""
    code: str | int | None = None


class StreamedChunk(msgspec.Struct):
    """One event of a stream, or the body of a refusal."""

    id: str = ""
    choices: list[StreamedChoice] = []
    error: StreamedError | None = None


CHUNK = msgspec.json.Decoder(StreamedChunk)
DONE = b"[DONE]"
JSON = {"content-type": "application/json"}
RECONNECT_SECONDS = 1.0
BUSY = (429, 503)


class EventCutter:
    """Cuts bytes as they arrive into the payloads of server-sent events."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]


def open_session(url: str, api_key: str, timeout: float) -> aiohttp.ClientSession:
    """A session without a limit of connections, so that no request waits for another on the client's side."""
    return aiohttp.ClientSession(
        base_url=f"{url.rstrip('/')}/",
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=timeout, sock_connect=10),
        headers={"authorization": f"Bearer {api_key}"} if api_key else {},
    )


@asynccontextmanager
async def open_client(url: str, model: str, timeout: float) -> AsyncIterator["LoadClient"]:
    """A client with a session of its own, of a gateway that asks for no key."""
    async with open_session(url, "", timeout) as session:
        yield LoadClient(session, model, SystemClock(), Tally())


class LoadClient:
    """Sends requests to one model of one server and records what comes back."""

    def __init__(self, session: aiohttp.ClientSession, model: str, clock: Clock, tally: Tally) -> None:
        self._session = session
        self._model = model
        self._tally = tally
        self._clock = clock
        # Durations come from the steady clock, set to the wall's time once.
        self._epoch = clock.wall() - clock.now()

    def now(self) -> float:
        """Seconds since the epoch that never go back."""
        return self._epoch + self._clock.now()

    async def fetch(self, ask: Ask, due: float) -> RequestRecord:
        """Send one request and follow its stream to the end; whatever goes wrong is in the record."""
        self._tally.on_sent()
        record = await self.attempt(self._session, ask, due)
        self._tally.on_end(record)
        return record

    async def attempt(self, session: aiohttp.ClientSession, ask: Ask, due: float) -> RequestRecord:
        """Submit a request once, and record what comes back."""
        stream = StreamRecorder(ask, due, self.now(), self._tally)
        try:
            async with session.post("v1/completions", data=self._body(ask), headers=JSON) as response:
                stream.status = response.status
                if response.status == 200:
                    await self._follow(response, stream)
                else:
                    stream.error = describe_refusal(response.status, await response.read())
                    stream.retry_after = retry_after(response)
        # aiohttp's own time limits are TimeoutErrors as well as ClientErrors: first things first.
        except TimeoutError:
            stream.error = "no end of the stream in time"
        except aiohttp.ClientConnectorError as error:
            stream.error = f"not connected: {error}"
            stream.retry_after = RECONNECT_SECONDS
        except (aiohttp.ClientError, OSError) as error:
            stream.error = f"connection failed: {error or type(error).__name__}"
            stream.broken = True
        return stream.record(self.now())

    def _body(self, ask: Ask) -> bytes:
        # Seeded and of a fixed length, so that every token can be checked and a short stream is a fault.
        return msgspec.json.encode(
            {
                "model": self._model,
                "prompt": ask.prompt,
                "max_tokens": ask.max_tokens,
                "ignore_eos": True,
                "temperature": ask.temperature,
                "seed": ask.seed,
                "stream": True,
                "return_token_ids": True,
            }
        )

    async def _follow(self, response: aiohttp.ClientResponse, stream: "StreamRecorder") -> None:
        events = EventCutter()
        async for data in read_available(response):
            # Tokens that arrive together get the same time, which is when a person would see them.
            at = self.now()
            for payload in events.feed(data):
                stream.take(payload, at)
        if not stream.done and stream.error is None:
            stream.error = "the stream ended without [DONE]"


async def read_available(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    while data := await response.content.readany():
        yield data


class StreamRecorder:
    """Collects the events of one stream as they arrive, and becomes its record."""

    def __init__(self, ask: Ask, due: float, sent: float, tally: Tally) -> None:
        self.status: int | None = None
        self.error: str | None = None
        self.done = False
        self.retry_after: float | None = None
        self.broken = False
        self._id = ""
        self._ask = ask
        self._due = due
        self._sent = sent
        self._tally = tally
        self._finish_reason: str | None = None
        self._token_ids: list[int] = []
        self._token_at: list[float] = []

    def take(self, payload: bytes, at: float) -> None:
        """Note one event's payload, received at the time `at`."""
        if payload == DONE:
            self.done = True
            return
        try:
            chunk = CHUNK.decode(payload)
        except msgspec.DecodeError as error:
            self.error = self.error or f"malformed event: {error}"
            return
        if chunk.error is not None:
            self.error = self.error or f"error in the stream: {chunk.error.message}"
        self._id = self._id or chunk.id
        for choice in chunk.choices:
            self._add(choice.token_ids or [], at)
            self._finish_reason = choice.finish_reason or self._finish_reason

    def _add(self, token_ids: list[int], at: float) -> None:
        for token in token_ids:
            self._tally.on_token(at, at - (self._token_at[-1] if self._token_at else self._due), not self._token_at)
            self._token_ids.append(token)
            self._token_at.append(at)

    def record(self, ended: float) -> RequestRecord:
        return RequestRecord(
            index=self._ask.index,
            due=self._due,
            sent=self._sent,
            ended=ended,
            prompt_tokens=len(self._ask.prompt),
            asked_tokens=self._ask.max_tokens,
            id=self._id,
            status=self.status,
            finish_reason=self._finish_reason,
            error=self.error,
            retry_after=self.retry_after,
            broken=self.broken,
            token_ids=self._token_ids,
            token_at=self._token_at,
        )


def describe_refusal(status: int, body: bytes) -> str:
    try:
        error = CHUNK.decode(body).error
    except msgspec.DecodeError:
        error = None
    return f"HTTP {status}: {error.message if error else body[:200].decode(errors='replace')}"


def retry_after(response: aiohttp.ClientResponse) -> float | None:
    """Seconds after which a busy server would have the request again; None where it does not say."""
    seconds = response.headers.get("retry-after", "")
    return float(seconds) if response.status in BUSY and seconds.isdecimal() else None


async def send_open_loop(client: LoadClient, asks: list[Ask], records: list[RequestRecord]) -> None:
    """Send each request when it is due, however the server fares; `records` fills in the order of their ends."""

    async def send(ask: Ask, due: float) -> None:
        records.append(await client.fetch(ask, due))

    start = client.now()
    async with asyncio.TaskGroup() as group:
        for ask in sorted(asks, key=lambda ask: (ask.at, ask.index)):
            # From the start, not from the one before: lateness does not add up.
            await asyncio.sleep(max(0.0, start + ask.at - client.now()))
            group.create_task(send(ask, start + ask.at), name=f"request-{ask.index}")
