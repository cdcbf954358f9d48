"""A model on disk, with what an earlier read of it left there: its version, and its packed form.

The version is in a small JSON file beside the checkpoint, or in a directory for such files. It is known before the
checkpoint is read again, as long as the checkpoint's files are the same.
"""

import errno
import os
import shutil
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path

import msgspec
import structlog
import xxhash

from livescale.services.host.adapter import open_adapter
from livescale.services.host.cache import Held
from livescale.services.host.checkpoint import open_checkpoint
from livescale.services.host.packed_file import NotPacked, PackedFile, PackStopped, PackWriter, place_blocks
from livescale.services.host.read_before import (
    AnyCheckpoint,
    FileFound,
    find_files,
    find_mode,
    load_manifest,
    save_manifest,
)
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.parameters import DType, KvCacheDType, Layout, Manifest
from livescale.shared.model.checkpoint import CheckpointError, load_model_config, resolve_model_path
from livescale.shared.process.otlp import TimedSpan

FREE_SHARE = 0.1  # share of a file system that packed forms leave free

log = structlog.get_logger()


def find_places(checkpoint: AnyCheckpoint, directory: str) -> list[Path]:
    """The paths, without their endings, where the version and the packed form may lie, the best first.

    They are in `directory` where one is given, else beside the checkpoint, or in the user's cache where that cannot be
    written. A user who may write to these can have other parameters served.
    """
    ranks = f"-{checkpoint.shards}-ranks" if checkpoint.shards > 1 else ""
    form = checkpoint.dtype + ranks + ("-panels" if checkpoint.layout == "panels" else "")
    form += "" if checkpoint.config.kv_cache_dtype == "auto" else f"-kv-{checkpoint.config.kv_cache_dtype}"
    own = f"{checkpoint.directory.name}-{sha256(bytes(checkpoint.directory)).hexdigest()[:16]}-{form}"
    if directory:
        return [Path(directory) / own]
    beside = checkpoint.directory / f"livescale-{form}"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    # A user without an account on this machine has no home.
    return [beside, cache / "livescale" / "packed" / own] if cache.is_absolute() else [beside]


class Stored:
    """Reads a model's blocks from the fastest place that holds them. `manifest` is known if it was read before.

    `places` are the paths, without endings, where earlier reads may have left something, the best first. Without
    places nothing is looked for, and nothing is left.
    """

    def __init__(self, checkpoint: AnyCheckpoint, places: Sequence[Path] = ()) -> None:
        self.checkpoint = checkpoint
        self._places = places
        self._files = find_files(checkpoint)
        self.manifest: Manifest | None = None
        self._packed: PackedFile | None = None
        self._damaged = False
        self._place = next((place for place in places if _json(place).exists()), None)
        if self._place is not None:
            self._look(self._place)

    @property
    def files(self) -> list[FileFound]:
        """The checkpoint's files as they were when this was opened."""
        return self._files

    @property
    def is_packed(self) -> bool:
        return self._packed is not None and not self._damaged

    @property
    def direct_bytes(self) -> int:
        """The bytes of the packed form that were read past the page cache."""
        return 0 if self._packed is None else self._packed.file.direct_bytes

    @property
    def sizes(self) -> list[int]:
        return [layout.size_bytes for layout in self.checkpoint.layouts]

    def read_block(self, index: int, into: memoryview) -> int:
        """Fill `into`, which has the block's size and begins at a page, and return its checksum.

        Where the manifest is known, the checksum is verified against it.

        Raises CheckpointError.
        """
        known = None if self.manifest is None else self.manifest.blocks[index].checksum
        if self._packed is not None and not self._damaged:
            if self._read_packed(self._packed, index, into) and xxhash.xxh3_64_intdigest(into) == known:
                return known
            self._damaged = True  # and is written anew, once the model has been read
            log.warning("packed_form_ignored", file=str(self._packed.file.path), error=f"block {index} is damaged")
        checksum = self.checkpoint.read_block(index, into)
        if self.manifest is not None and checksum != known:
            self._forget()
            raise CheckpointError(
                f"{self.checkpoint.directory}: block {index} is not that of version {self.manifest.version}: the files "
                "belong to another version, or changed unnoticed; they will be read again"
            )
        return checksum

    def expect(self, manifest: Manifest) -> None:
        """Accept only this version from now on. Raises CheckpointError where the files cannot hold it."""
        checksums = [block.checksum for block in manifest.blocks]
        fits = len(checksums) == len(self.checkpoint.layouts) and self.checkpoint.manifest(checksums) == manifest
        if not fits or self.manifest not in (None, manifest):
            raise CheckpointError(f"{self.checkpoint.directory}: does not hold version {manifest.version}")
        self.manifest = manifest

    def keep(self, manifest: Manifest, blocks: Sequence[memoryview], stopped: Callable[[], bool]) -> None:
        """Write version and packed form for the next read. A failure to write is logged, and nothing else."""
        size_bytes = place_blocks(self.sizes)[1]
        try:
            if not self._places or self._files != find_files(self.checkpoint):
                return
            place = self._writable()
            save_manifest(_json(place), self._files, manifest, find_mode(self.checkpoint))
            if not _has_room(place.parent, size_bytes):
                log.warning("model_not_packed", directory=str(place.parent), error="too little room", needs=size_bytes)
                return
            with PackWriter(_packed(place), self.sizes, find_mode(self.checkpoint), stopped) as writer:
                for block in blocks:
                    writer.write(block)
                writer.finish(manifest.version)
        except (OSError, PackStopped) as error:
            log.warning("model_not_packed", directory=str(self.checkpoint.directory), error=str(error))
        else:
            log.info("model_packed", file=str(_packed(place)), size_bytes=size_bytes)

    def pack(self, progress: Callable[[int], None]) -> Path:
        """Read the whole model, a block at a time, and write its packed form. `progress` is called with bytes read.

        Raises CheckpointError, OSError.
        """
        place = self._writable()
        checksums = []
        memory = memoryview(bytearray(max(self.sizes)))
        with PackWriter(_packed(place), self.sizes, find_mode(self.checkpoint)) as writer:
            for index, size in enumerate(self.sizes):
                checksums.append(self.checkpoint.read_block(index, memory[:size]))
                writer.write(memory[:size])
                progress(size)
            manifest = self.checkpoint.manifest(checksums)
            writer.finish(manifest.version)
        save_manifest(_json(place), self._files, manifest, find_mode(self.checkpoint))
        return _packed(place)

    def close(self) -> None:
        """Close the packed file. It is called when nothing is being read any more."""
        if self._packed is not None:
            self._packed.file.close()

    def _look(self, place: Path) -> None:
        try:
            self.manifest = load_manifest(_json(place), self.checkpoint)
            if self.manifest is None:
                log.info("packed_form_is_stale", file=str(_packed(place)))
                return
            self._packed = PackedFile(_packed(place), self.manifest)
        except FileNotFoundError:
            pass  # never packed, or removed to make room
        except (OSError, CheckpointError, NotPacked, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            log.warning("packed_form_ignored", file=str(_packed(place)), error=str(error))

    def _read_packed(self, packed: PackedFile, index: int, into: memoryview) -> bool:
        try:
            packed.read_block(index, into)
        except OSError as error:
            log.warning("packed_form_not_read", file=str(packed.file.path), error=str(error))
            return False
        return True

    def _forget(self) -> None:
        if self._place is not None:
            _json(self._place).unlink(missing_ok=True)

    def _writable(self) -> Path:
        """The first place that can be written to. Raises OSError where there is none."""
        for place in self._places:
            if place.parent != self.checkpoint.directory:
                place.parent.mkdir(parents=True, exist_ok=True)
            if os.access(place.parent, os.W_OK):
                return place
        raise PermissionError(
            errno.EACCES, "no directory to write to; name one with --packed-dir or LIVESCALE_PACKED_DIR"
        )


def open_stored(
    path: Path,
    dtype: DType,
    shards: int = 1,
    layout: Layout = "plain",
    kv_cache_dtype: KvCacheDType = "auto",
    *,
    keep: bool,
    packed_dir: str = "",
) -> Stored:
    """Check the checkpoint in `path`, cut for `shards` ranks.

    With `keep` it uses what earlier reads have left, and leaves the same for later ones.

    Raises CheckpointError, OSError.
    """
    checkpoint = open_checkpoint(path, dtype, shards, layout, kv_cache_dtype)
    return Stored(checkpoint, find_places(checkpoint, packed_dir) if keep else ())


def open_spec(spec: ModelSpec, *, keep: bool, packed_dir: str = "") -> Stored:
    """Check what a spec names: a checkpoint, or an adapter, of which reads leave nothing behind.

    Raises CheckpointError, OSError.
    """
    path = resolve_model_path(spec.path)
    if spec.base is None:
        return open_stored(path, *spec.form, keep=keep, packed_dir=packed_dir)
    config = load_model_config(resolve_model_path(spec.base_path or "", parameters=False), spec.kv_cache_dtype)
    return Stored(open_adapter(path, config, spec.dtype))


def _json(place: Path) -> Path:
    return place.with_name(place.name + ".manifest.json")


def _packed(place: Path) -> Path:
    return place.with_name(place.name + ".packed")


def _has_room(directory: Path, size_bytes: int) -> bool:
    disk = shutil.disk_usage(directory)
    return disk.free - size_bytes >= FREE_SHARE * disk.total


def read_span(held: Held, began: float, ended: float, source: str, error: str | None) -> TimedSpan:
    """From the moment that a version had its turn at the disk until it was in memory, in seconds since the epoch.

    `source` says in which form it lay there.
    """
    return TimedSpan(
        "read",
        began,
        ended,
        {
            "gen_ai.request.model": held.model,
            "livescale.read.bytes": held.size_bytes,
            "livescale.read.blocks": held.total,
            "livescale.read.source": source,
        },
        error=None if error is None else "failed",
    )
