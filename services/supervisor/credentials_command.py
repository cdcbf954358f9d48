"""`livescale credentials` writes the passwords of a NATS server that the system does not start itself."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import msgspec

from livescale.services.supervisor.credentials import OPERATOR, ROLES, authorization, fresh_passwords

CONFIG = "nats-server.conf"
# A server in a container of its own: all addresses are those of the network that it joined.
LISTEN, MONITORING = "0.0.0.0:4222", "0.0.0.0:8222"
STORE = "/var/lib/livescale/nats"
# Containers read the files under other users than whoever made them. The directory keeps others of this machine out.
DIRECTORY_MODE, FILE_MODE = 0o700, 0o444


@click.command()
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--namespace",
    default="default",
    show_default=True,
    envvar="LIVESCALE_NAMESPACE",
    show_envvar=True,
    help="Name of the system on the server; the logins are good for its subjects only.",
)
@click.option("--store-dir", default=STORE, show_default=True, help="Directory in which the server keeps its state.")
@click.option("--renew", is_flag=True, help="Make new passwords for roles that have one, too.")
def credentials(directory: Path, namespace: str, store_dir: str, renew: bool) -> None:
    """Write a NATS server's configuration and a login for each role into DIRECTORY.

    A process is given the login of its role by --nats-login, and may use only that role's subjects. Files that are
    there keep their passwords. The directory can be read by its owner alone, the files in it by everybody: so
    containers under any user can have them mounted.
    """
    try:
        write_credentials(directory, namespace, store_dir, renew)
    except OSError as error:
        raise click.ClickException(f"{error.filename or directory}: {error.strerror}") from None
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"{directory}: {CONFIG} and the logins of {', '.join((*ROLES, OPERATOR))}")


def write_credentials(directory: Path, namespace: str, store_dir: str, renew: bool = False) -> None:
    """Write the configuration and the logins; all belong to the owner of the directory.

    Raises OSError, ValueError for a login that is there and is none.
    """
    directory.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    directory.chmod(DIRECTORY_MODE)
    passwords = fresh_passwords()
    if not renew:
        passwords |= {role: found for role in passwords if (found := read_password(directory / role, role))}
    for role, password in passwords.items():
        _write(directory / role, f"{role}:{password}\n".encode())
    _write(directory / CONFIG, msgspec.json.format(msgspec.json.encode(server_config(passwords, namespace, store_dir))))


def server_config(passwords: Mapping[str, str], namespace: str, store_dir: str) -> dict[str, Any]:
    """The configuration of a server that asks everybody who they are, and tells its health to anybody."""
    return {
        "listen": LISTEN,
        "http": MONITORING,
        "server_name": f"livescale-{namespace}",
        "jetstream": {"store_dir": store_dir},
        "authorization": authorization(passwords, namespace),
    }


def read_password(path: Path, role: str) -> str | None:
    """The password in a login; None where there is no such file. Raises ValueError for a file that is no login."""
    try:
        user, _, password = path.read_text().strip().partition(":")
    except FileNotFoundError:
        return None
    if user != role or not password:
        raise ValueError(f"{path} holds no {role}:PASSWORD; remove it, or give --renew")
    return password


def _write(path: Path, data: bytes) -> None:
    """Replace the file at once."""
    owner, temporary = path.parent.stat(), path.with_name(f".{path.name}")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        os.fchmod(descriptor, FILE_MODE)
        if os.geteuid() == 0:
            os.fchown(descriptor, owner.st_uid, owner.st_gid)
    os.replace(temporary, path)
