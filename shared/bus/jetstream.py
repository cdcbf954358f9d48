"""What is kept on the server: small declared state in a key-value bucket, and a day of events."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import KeyValueConfig, RetentionPolicy, StorageType

from livescale.shared.bus.codec import decode, encode
from livescale.shared.bus.contract import BusError, CallTimeout, Disconnected, M, ServiceAbsent
from livescale.shared.messages.message import Message

TIMEOUT_SECONDS = 5.0
EVENT_SECONDS = 86_400.0
EVENT_BYTES = 256 << 20


@contextmanager
def _bus_errors() -> Iterator[None]:
    try:
        yield
    except nats.js.errors.InvalidKeyError as error:
        raise ValueError("a key is made of letters, digits and - _ / = .") from error
    except nats.errors.TimeoutError as error:
        raise CallTimeout("JetStream did not answer") from error
    except (nats.errors.NoRespondersError, nats.js.errors.ServiceUnavailableError) as error:
        raise ServiceAbsent("this NATS server runs without JetStream: start it with -js") from error
    except (nats.errors.ConnectionClosedError, nats.errors.OutboundBufferLimitError) as error:
        raise Disconnected("the bus is down") from error
    except nats.errors.Error as error:
        raise BusError(f"JetStream: {error}") from error
    finally:
        heed_cancellation()


def heed_cancellation() -> None:
    """Raise CancelledError where this task was told to end. nats-py waits for answers by `wait_for`, which before
    Python 3.12 swallows a cancellation that comes together with the answer."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


class NatsKeyValue:
    """A bucket, made when it is first needed. Values are JSON, so that `nats kv get` shows them. They are kept for
    `seconds`, 0 is for ever, and `most_bytes` of them in all, -1 is any number."""

    def __init__(self, client: Client, bucket: str, seconds: float = 0.0, most_bytes: int = -1) -> None:
        self._client = client
        self._name = bucket
        self._seconds = seconds
        self._most_bytes = most_bytes
        self._bucket: Any = None

    async def put(self, key: str, value: Message) -> None:
        with _bus_errors():
            await (await self._open()).put(key, encode(value, json=True))

    async def get(self, key: str, type: type[M]) -> M | None:
        with _bus_errors():
            try:
                entry = await (await self._open()).get(key)
            except nats.js.errors.KeyNotFoundError:
                return None
        return decode(type, entry.value, json=True)

    async def delete(self, key: str) -> None:
        with _bus_errors():
            await (await self._open()).delete(key)

    async def list(self, prefix: str, type: type[M]) -> dict[str, M]:
        # Not nats-py's `keys()`: it watches, without a deadline.
        subjects = f"$KV.{self._name}."
        with _bus_errors():
            await self._open()
            stream = self._client.jetstream(timeout=TIMEOUT_SECONDS)
            wanted = f"{subjects}{prefix}.>" if prefix else f"{subjects}>"
            info = await stream.stream_info(f"KV_{self._name}", subjects_filter=wanted)
        keys = sorted(subject.removeprefix(subjects) for subject in info.state.subjects or {})
        values = {key: await self.get(key, type) for key in keys}
        return {key: value for key, value in values.items() if value is not None}

    async def _open(self) -> Any:  # noqa: ANN401 nats-py's KeyValue is untyped
        if not self._client.is_connected:
            raise Disconnected("the bus is down")
        if self._bucket is None:
            stream = self._client.jetstream(timeout=TIMEOUT_SECONDS)
            settings = KeyValueConfig(
                bucket=self._name, storage=StorageType.FILE, ttl=self._seconds or None, max_bytes=self._most_bytes
            )
            try:
                self._bucket = await stream.create_key_value(config=settings)
            except nats.js.errors.BadRequestError:
                self._bucket = await self._adopt(stream)
        return self._bucket

    async def _adopt(self, stream: JetStreamContext) -> Any:  # noqa: ANN401 nats-py's KeyValue is untyped
        """Use a bucket that was made with other limits, by those of this process."""
        config = (await stream.stream_info(f"KV_{self._name}")).config
        await stream.update_stream(config.evolve(max_age=self._seconds, max_bytes=self._most_bytes))
        return await stream.key_value(self._name)


async def keep_events(client: Client, name: str, subjects: str) -> None:
    """Have the server keep what is published on `subjects` for a day. Raises BusError."""
    with _bus_errors():
        await client.jetstream(timeout=TIMEOUT_SECONDS).add_stream(
            name=name,
            subjects=[subjects],
            max_age=EVENT_SECONDS,
            max_bytes=EVENT_BYTES,
            retention=RetentionPolicy.LIMITS,
            storage=StorageType.FILE,
        )
