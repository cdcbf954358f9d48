#!/opt/livescale/bin/python -SE
"""Asks a process of this container how it is: `probe` for /ready of its system port, `probe /live` and
`probe HOST:PORT/PATH` for others.

Ends with 0 after an answer below 400, else with 1 and the reason. It is small, as it runs every few seconds.
"""

import os
import socket
import sys


def ask(target: str) -> bytes:
    address, _, path = target.partition("/")
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=4) as connection:
        connection.sendall(f"GET /{path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n".encode())
        connection.settimeout(4)
        answer = b""
        while part := connection.recv(65536):
            answer += part
    return answer


def main() -> None:
    try:
        target = sys.argv[1] if len(sys.argv) > 1 else "/ready"
        if target.startswith("/"):
            with open(os.environ["LIVESCALE_SYSTEM_FILE"]) as file:
                target = file.read().strip() + target
        answer = ask(target)
    except OSError as error:
        sys.exit(f"probe: {error}")
    head, _, body = answer.partition(b"\r\n\r\n")
    print(body.decode(errors="replace")[:1000].strip())
    status = head.split(b" ")[1:2]
    sys.exit(0 if status and status[0].isdigit() and int(status[0]) < 400 else 1)


if __name__ == "__main__":
    main()
