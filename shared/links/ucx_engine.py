"""UCX driven from an event loop: one context, one worker, an epoll descriptor instead of busy polling.

Environment variables `UCX_*` have the last word, as users of UCX expect. Between hosts `UCX_RNDV_SCHEME=put_zcopy`
doubles what tcp reaches; on one host it must stay unset. `UCX_NET_DEVICES=mlx5_0:1` and the like bring RDMA in;
by default only the device of the bind address is used. Where the kernel shapes links between namespaces of one
host, `UCX_TLS=tcp` is needed: shared memory would pass the shaping by.
"""

import asyncio
import ctypes
import fcntl
import os
import re
import socket
import struct
import time
from collections import Counter
from collections.abc import Sequence
from ctypes import POINTER, Structure, byref, c_char, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p, sizeof
from pathlib import Path
from typing import Any

from ucxx._lib.arr import Array
from ucxx._lib.libucxx import Feature, UCXAddress, UCXContext, UCXEndpoint, UCXRequest, UCXWorker
from ucxx.exceptions import UCXError

from livescale.shared.links.contract import LinkError
from livescale.shared.links.link_path import memory_kind
from livescale.shared.links.process_memory import NOWHERE, CopyThread, own_mark, why_refused

# While a peer connects UCX's descriptor is ready all the time, and nothing is. After so many looks for nothing each is
# followed by a rest: the peer may have to share a core with us.
LOOKS, REST_SECONDS = 8, 0.001  # uvloop counts in milliseconds
SLICE_SECONDS = 0.0005  # the longest the loop is held; a large message is spread over several slices
TICK_SECONDS = 0.2  # an event lost by epoll costs no more than this
SIOCGIFADDR = 0x8915
GPUDIRECT = Path("/sys/module/nvidia_peermem")
TRANSPORT = re.compile(r"-- (\w+)/")  # in what UCX says of its context: "resource 1 : md 1 dev 1 flags -- tcp/lo"

FIELD_TRANSPORTS = 1 << 3
NAME_BYTES, ADDRESS_WORDS = 32, 16
MOST_TRANSPORTS = 32

# Both were loaded by ucxx before, so these are the same ones.
_ucp, _ucs = ctypes.CDLL("libucp.so.0"), ctypes.CDLL("libucs.so.0")


class UcxEngine:
    """Owns the worker; turns requests into futures. Every method runs on the loop's thread."""

    def __init__(self, bind: str, memory: str) -> None:
        """`memory`: host, pinned or cuda:N. Raises UCXError, and LinkError where UCX cannot reach it."""
        self._loop = asyncio.get_running_loop()
        self.memory = memory_kind(memory)
        self.gpudirect = GPUDIRECT.exists()
        if self.memory == "cuda":
            use_gpu(memory)
        self._context: Any = UCXContext(_settings(bind), (Feature.TAG, Feature.WAKEUP))
        read_routes()
        transports = set(TRANSPORT.findall(self._context.info))
        if self.memory == "cuda":
            check_reach(memory, transports)
        # Where UCX is told to leave CMA alone, the links of one machine may be shaped.
        self.mark = own_mark() if "cma" in transports and why_refused() is None else NOWHERE
        self.copying = CopyThread(self._loop)
        self.worker: Any = UCXWorker(self._context, enable_delayed_submission=False, enable_python_future=False)
        self.worker.init_blocking_progress_mode()
        self.address = bytes(memoryview(self.worker.address))
        self.made: Counter[bytes] = Counter()  # endpoints, by address
        # A request writes into its buffer until it is completed, even if no caller waits for it any more: both are kept
        # here.
        self._pending: dict[UCXRequest, tuple[asyncio.Future[str | None], Array]] = {}
        self._closing: list[tuple[UCXEndpoint, Sequence[UCXRequest]]] = []
        self._soon: asyncio.Handle | None = None
        self._resting: asyncio.TimerHandle | None = None
        self._looks = 0
        self._listen()
        self._tick = self._loop.call_later(TICK_SECONDS, self._on_tick)

    def endpoint(self, address: bytes) -> UCXEndpoint:
        """An endpoint with peer error handling. Raises UCXError."""
        self.made[address] += 1
        return UCXEndpoint.create_from_worker_address(self.worker, UCXAddress.create_from_buffer(address), True)

    def close_endpoint(self, endpoint: UCXEndpoint) -> None:
        """Close an endpoint, and end every request that is under way on it."""
        endpoint.close_blocking(period=10**9, max_attempts=1)
        self.reap()

    def close_later(self, endpoint: UCXEndpoint, requests: Sequence[UCXRequest]) -> None:
        """Close an endpoint once these requests are completed.

        A TCP connection that is closed by force while it cannot send is used by UCX after it is freed, and the process
        dies once the network is back. As it is, these requests end then, or when the kernel gives the connection up.
        """
        self._closing.append((endpoint, requests))
        self.wake()

    def watch(self, request: UCXRequest, memory: Array) -> asyncio.Future[str | None]:
        """A future for the completion of `request`: None, or what went wrong."""
        future: asyncio.Future[str | None] = self._loop.create_future()
        self._pending[request] = (future, memory)
        self.wake()
        return future

    def wake(self) -> None:
        """Have progress made soon. To be called after every submission."""
        if self._soon is None:
            self._soon = self._loop.call_soon(self._drive)

    def push(self, request: UCXRequest) -> None:
        """Give a small last message one slice to leave this process."""
        until = time.perf_counter() + SLICE_SECONDS
        while not request.completed and time.perf_counter() < until:
            self.worker.progress_once()

    def reap(self) -> None:
        """Finish the requests of endpoints that failed or were closed: only a full progress cancels them."""
        self.worker.progress()
        self._complete()
        self.wake()

    def close(self) -> None:
        """Free the worker and its descriptors. Every endpoint has to be closed before."""
        self._tick.cancel()
        self._stop_listening()
        closing, self._closing = self._closing, []
        for endpoint, _ in closing:
            self.close_endpoint(endpoint)
        self.reap()
        self.copying.close()
        if self._soon is not None:
            self._soon.cancel()
        self._pending.clear()
        self.worker = self._context = None

    def _on_tick(self) -> None:
        self._tick = self._loop.call_later(TICK_SECONDS, self._on_tick)
        self.wake()

    def _drive(self) -> None:
        self._soon = None
        until = time.perf_counter() + SLICE_SECONDS
        busy = True
        while busy and time.perf_counter() < until:
            busy = self.worker.progress_once()
            if busy:
                self._looks = 0
        self._complete()
        # Arming fails when events have come meanwhile; epoll would not report those.
        if busy or not self.worker.arm():
            self.wake()

    def _hear(self) -> None:
        self._looks += 1
        self._drive()
        if self._looks >= LOOKS:
            self._stop_listening()
            self._resting = self._loop.call_later(REST_SECONDS, self._listen)

    def _listen(self) -> None:
        self._resting = None
        self._loop.add_reader(self.worker.epoll_file_descriptor, self._hear)

    def _stop_listening(self) -> None:
        self._loop.remove_reader(self.worker.epoll_file_descriptor)
        if self._resting is not None:
            self._resting.cancel()
            self._resting = None

    def _complete(self) -> None:
        for request in [request for request in self._pending if request.completed]:
            future, _ = self._pending.pop(request)
            if not future.done():
                future.set_result(_error_of(request))
        over = [one for one in self._closing if all(request.completed for request in one[1])]
        if over:
            self._closing = [one for one in self._closing if one not in over]
            for endpoint, _ in over:
                self.close_endpoint(endpoint)


def _error_of(request: UCXRequest) -> str | None:
    try:
        request.check_error()
    except UCXError as error:
        return str(error)
    return None


def use_gpu(name: str) -> None:
    """Make torch's CUDA context that of this thread, as UCX works in the context of its thread. Raises LinkError."""
    try:
        from cuda.core import Device

        Device(int(name.removeprefix("cuda:"))).set_current()
    except (ImportError, RuntimeError) as error:  # no driver, among others
        raise LinkError(f"device: {name} cannot be used: {error}") from error


def check_reach(name: str, transports: set[str]) -> None:
    """Raises LinkError where UCX has no transport for the memory of the GPU `name`."""
    if "cuda_copy" not in transports:
        raise LinkError(
            f"transport: UCX has {', '.join(sorted(transports))} here and for {name} needs cuda_copy: leave it in "
            "UCX_TLS, and use a libucx that was built with CUDA"
        )


def read_routes() -> None:
    """Have UCX read this machine's routes now, while its links are up.

    UCX 1.21 reads them once in the life of a process, when it first asks for a peer on another machine. Had that been
    while a link was down, the machines behind it would be out of reach for this process ever after.
    """
    if (ask := getattr(_ucs, "ucs_netlink_route_exists", None)) is not None:  # older ones ask the kernel each time
        anywhere = struct.pack("=HH4s8x", socket.AF_INET, 0, socket.inet_aton("127.0.0.1"))
        ask(c_int(1), c_char_p(anywhere), None)


def _settings(bind: str) -> dict[str, str]:
    wanted = {
        # With peer error handling UCX gives up CMA unless it may invalidate memory: 1 GB/s instead of 9.
        "CMA_MEMORY_INVALIDATE": "y",
        "NET_DEVICES": device_of(bind),
    }
    return {name: value for name, value in wanted.items() if f"UCX_{name}" not in os.environ}


def device_of(address: str) -> str:
    """The network device that has this IPv4 address. Raises LinkError."""
    try:
        wanted = socket.gethostbyname(address)
    except OSError as error:
        raise LinkError(f"bind: {address} is neither an IPv4 address nor a host name with one: {error}") from error
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                found = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:  # a device without an IPv4 address
                continue
            if socket.inet_ntoa(found[20:24]) == wanted:
                return name
    raise LinkError(f"bind: no network device of this machine has the address {address}")


class _Transport(Structure):
    """The C struct ucp_transport_entry_t: one transport that an endpoint uses."""

    _fields_ = (("name", c_char_p), ("device", c_char_p))


class _Attributes(Structure):
    """The C struct ucp_ep_attr_t: what UCX tells of an endpoint."""

    _fields_ = (
        ("field_mask", c_uint64),
        ("name", c_char * NAME_BYTES),
        ("local_address", c_uint64 * ADDRESS_WORDS),
        ("remote_address", c_uint64 * ADDRESS_WORDS),
        ("transports", POINTER(_Transport)),
        ("count", c_uint),
        ("entry_bytes", c_size_t),
        ("user_data", c_void_p),
    )


def endpoint_transports(handle: int) -> frozenset[str]:
    """The transports of an endpoint, for small and large messages; none where UCX does not tell."""
    entries = (_Transport * MOST_TRANSPORTS)()
    asked = _Attributes(
        field_mask=FIELD_TRANSPORTS, transports=entries, count=MOST_TRANSPORTS, entry_bytes=sizeof(_Transport)
    )
    status = _ucp.ucp_ep_query(c_void_p(handle), byref(asked))
    return frozenset() if status else frozenset(entry.name.decode() for entry in entries[: asked.count])
