"""Servers of others: users, nkeys and TLS, with a real nats-server; and files that cannot be used."""

import asyncio
import json
import shutil
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nkeys
import pytest

from livescale.services.supervisor.bus_server import find_server, server_name
from livescale.services.supervisor.ports import free_port
from livescale.shared.bus.contract import BusError, Disconnected
from livescale.shared.bus.identity import NatsFiles, connect_options, hide_password, inbox_prefix
from livescale.shared.bus.nats import NatsBus

OPENSSL = shutil.which("openssl")


def openssl(directory: Path, *words: str) -> None:
    assert OPENSSL is not None
    subprocess.run([OPENSSL, *words], cwd=directory, check=True, capture_output=True)


def make_certificate(directory: Path, name: str, issuer: str | None) -> None:
    """`name`.pem and `name`.key, for localhost, signed by `issuer`, or by itself."""
    signed = (
        ("-CA", f"{issuer}.pem", "-CAkey", f"{issuer}.key")
        if issuer
        else ("-addext", "basicConstraints=critical,CA:TRUE")
    )
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", f"{name}.key")
    names = ("-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost")
    openssl(directory, "req", "-x509", *key, *names, *signed, "-days", "2", "-out", f"{name}.pem")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if OPENSSL is None:
        pytest.skip("openssl is not installed")
    directory = tmp_path_factory.mktemp("certificates")
    make_certificate(directory, "ca", None)
    make_certificate(directory, "other-ca", None)
    for name in ("server", "client"):
        make_certificate(directory, name, "ca")
    return directory


@asynccontextmanager
async def server(directory: Path, config: Mapping[str, Any]) -> AsyncIterator[int]:
    port, path = free_port(), directory / "server.conf"
    path.write_text(json.dumps({"listen": f"127.0.0.1:{port}", "server_name": "theirs", **config}))
    process = await asyncio.create_subprocess_exec(
        find_server({}), "--config", str(path), stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(60):
            while await server_name(port) is None:  # noqa: ASYNC110 another program
                await asyncio.sleep(0.01)
        yield port
    finally:
        process.terminate()
        await process.wait()


async def is_let_in(url: str, files: NatsFiles = NatsFiles(), timeout: float = 5.0) -> bool:  # noqa: B008 frozen
    try:
        bus = await NatsBus.connect(url, "default", "test", files=files, timeout=timeout)
    except Disconnected:
        return False
    await bus.flush()
    await bus.close()
    return True


async def is_refused(url: str, files: NatsFiles = NatsFiles()) -> bool:  # noqa: B008 frozen
    """Whether the server lets nobody in for a while: a client tries again and again."""
    return not await is_let_in(url, files, timeout=0.4)


def tls(certificates: Path, *, verify: bool) -> dict[str, Any]:
    files = {"cert_file": "server.pem", "key_file": "server.key", "ca_file": "ca.pem"}
    return {"tls": {name: str(certificates / file) for name, file in files.items()} | {"verify": verify}}


@pytest.mark.system
async def test_users_and_tokens_in_the_url(tmp_path: Path) -> None:
    async with server(tmp_path, {"authorization": {"user": "me", "password": "sesame"}}) as port:
        assert await is_let_in(f"nats://me:sesame@127.0.0.1:{port}")
        assert await is_refused(f"nats://me:wrong@127.0.0.1:{port}")
    async with server(tmp_path, {"authorization": {"token": "sesame"}}) as port:
        assert await is_let_in(f"nats://sesame@127.0.0.1:{port}")
        assert await is_refused(f"nats://127.0.0.1:{port}")


@pytest.mark.system
async def test_an_nkey(tmp_path: Path) -> None:
    seeds = [nkeys.encode_seed(bytes([number]) * 32, nkeys.PREFIX_BYTE_USER) for number in (1, 2)]
    for name, seed in zip(("mine", "other"), seeds, strict=True):
        (tmp_path / name).write_bytes(seed)
    public = nkeys.from_seed(bytearray(seeds[0])).public_key.decode()
    async with server(tmp_path, {"authorization": {"users": [{"nkey": public}]}}) as port:
        url = f"nats://127.0.0.1:{port}"
        assert await is_let_in(url, NatsFiles(nkey=str(tmp_path / "mine")))
        assert await is_refused(url, NatsFiles(nkey=str(tmp_path / "other")))


@pytest.mark.system
async def test_tls_checks_the_server_and_where_asked_the_client(tmp_path: Path, certificates: Path) -> None:
    ca, other = str(certificates / "ca.pem"), str(certificates / "other-ca.pem")
    ours = {"cert": str(certificates / "client.pem"), "key": str(certificates / "client.key")}
    user = {"authorization": {"user": "me", "password": "sesame"}}
    async with server(tmp_path, tls(certificates, verify=False) | user) as port:
        assert await is_let_in(f"tls://me:sesame@127.0.0.1:{port}", NatsFiles(ca=ca))
        assert await is_let_in(f"nats://me:sesame@127.0.0.1:{port}", NatsFiles(ca=ca))
        assert await is_refused(f"tls://me:sesame@127.0.0.1:{port}", NatsFiles(ca=other))
        assert await is_refused(f"tls://me:sesame@127.0.0.1:{port}")
        assert await is_refused(f"tls://me:wrong@127.0.0.1:{port}", NatsFiles(ca=ca))
    async with server(tmp_path, tls(certificates, verify=True)) as port:
        assert await is_let_in(f"tls://127.0.0.1:{port}", NatsFiles(ca=ca, **ours))
        assert await is_refused(f"tls://127.0.0.1:{port}", NatsFiles(ca=ca))


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (NatsFiles(creds="/nowhere"), "nats-creds: /nowhere: No such file"),
        (NatsFiles(creds="garbage"), "garbage is not a NATS credentials file"),
        (NatsFiles(nkey="/nowhere"), "nats-nkey: /nowhere: No such file"),
        (NatsFiles(nkey="garbage"), "garbage holds no nkey seed"),
        (NatsFiles(creds="garbage", nkey="garbage"), "give only one of the two"),
        (NatsFiles(ca="garbage"), "garbage holds no certificates"),
        (NatsFiles(ca="/nowhere"), "nats-ca: /nowhere: No such file"),
        (NatsFiles(cert="garbage", key="garbage"), "are not a certificate and its key"),
        (NatsFiles(cert="garbage"), "belong together"),
        (NatsFiles(key="garbage"), "belong together"),
        (NatsFiles(ca="."), r"nats-ca: \.: Is a directory"),
    ],
)
def test_files_that_cannot_be_used_are_named(
    files: NatsFiles, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "garbage").write_text("garbage")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BusError, match=said):
        connect_options(files)


def test_the_usual_variables_are_read_and_handed_on() -> None:
    files = NatsFiles.from_environment({"NATS_CREDS": "/c", "NATS_CA": "/ca", "NATS_URL": "nats://x"})
    assert files == NatsFiles(creds="/c", ca="/ca")
    assert files.environment()["LIVESCALE_NATS_CREDS"] == "/c"
    assert NatsFiles.from_environment(files.environment()) == files


@pytest.mark.parametrize(
    ("url", "shown", "inbox"),
    [
        ("nats://a:b@h:1", "nats://a:***@h:1", "_INBOX.a"),
        ("nats://token@h:1", "nats://***@h:1", "_INBOX"),
        ("nats://h:1", "nats://h:1", "_INBOX"),
        ("nats://o.k:b@h:1", "nats://o.k:***@h:1", "_INBOX"),
        ("", "", "_INBOX"),
    ],
)
def test_urls_are_shown_without_their_secrets(url: str, shown: str, inbox: str) -> None:
    assert hide_password(url) == shown
    assert inbox_prefix(url) == inbox
