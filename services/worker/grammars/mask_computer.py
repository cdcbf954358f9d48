"""The process that computes masks, as its worker sees it: started, asked, and started again where it died."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import structlog

from livescale.services.worker.grammars.shared_masks import READY, AskMask, LearnTokens
from livescale.shared.process.bounded_answers import framed
from livescale.shared.process.bounded_process import bare_environment

START_SECONDS = 60.0
TRY_AGAIN_SECONDS = 1.0
MODULE = "livescale.services.worker.grammars.mask_process"

log = structlog.get_logger()


class MasksFailed(RuntimeError):
    """No masks can be computed; the message says why."""


class MaskComputer:
    """A process that is told the vocabulary first. It is started again whenever it dies, after `on_death`, and knows
    nothing of earlier masks then.

    Any thread may call it. All but `start` and `close` are called with the `lock` held, as `on_death` is.
    """

    def __init__(self, learn: LearnTokens, on_death: Callable[[], None]) -> None:
        self._file = learn.file
        self._learn = framed(msgspec.msgpack.encode(learn))
        self._on_death = on_death
        self.lock = threading.Lock()
        self.knows = False  # the vocabulary
        self._closed = False
        self._process: subprocess.Popen[bytes] | None = None
        self._died = 0.0

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def dead_seconds(self) -> float:
        """How long there has been no process that knows the vocabulary."""
        return 0.0 if self.knows else time.perf_counter() - self._died

    def start(self) -> None:
        """Start the process, and return once it knows the vocabulary. Raises MasksFailed."""
        with self.lock:
            if self._closed:
                raise MasksFailed("the model was unloaded")
            process = self._process = subprocess.Popen(
                (sys.executable, "-m", MODULE),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # a traceback would show what is generated
                pass_fds=(self._file,),
                env=bare_environment(),
            )
        watch = threading.Timer(START_SECONDS, process.kill)
        watch.start()
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(self._learn)
            process.stdin.flush()
            if process.stdout.read(len(READY)) != READY:
                raise MasksFailed("the vocabulary cannot be used for grammars")
            self.knows = True
        except (OSError, ValueError):  # it was ended meanwhile
            raise MasksFailed("the process that applies grammars does not start") from None
        finally:
            watch.cancel()

    def send(self, asks: list[AskMask]) -> None:
        """Ask for masks, unless no process knows the vocabulary."""
        if not asks or self._process is None or not self.knows:
            return
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(framed(msgspec.msgpack.encode(asks)))
            self._process.stdin.flush()
        except OSError:
            self.look()

    def look(self) -> None:
        """Start the process again where it has died."""
        process = self._process
        if process is None or not self.knows or process.poll() is None:
            return
        log.warning("mask_process_died", code=process.returncode)
        self._process, self.knows, self._died = None, False, time.perf_counter()
        self._on_death()
        threading.Thread(target=self._restart, args=(process,), name="masks", daemon=True).start()

    def processor_seconds(self, thread: int) -> float:
        """What a thread of the process has used of a processor so far; 0 where it is gone."""
        with suppress(OSError):
            fields = Path(f"/proc/{self.pid}/task/{thread}/stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return 0.0

    def kill(self) -> None:
        """End the process, which is at work that does not end. It is started again."""
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        """End the process for good. A second call does nothing."""
        with self.lock:
            process, self._process = self._process, None
            if not self._closed:
                self._closed = True
                os.close(self._file)
        if process is not None:
            _end(process)

    def _restart(self, process: "subprocess.Popen[bytes]") -> None:
        """Start the process until it lives: without it requests with a grammar would wait for ever."""
        while True:
            _end(process)
            try:
                self.start()
                return
            except (MasksFailed, OSError) as error:
                log.error("mask_process_lost", error=str(error))
            with self.lock:
                if self._closed:
                    return
                process = self._process or process
            time.sleep(TRY_AGAIN_SECONDS)


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(OSError):
                stream.close()
    process.wait()
