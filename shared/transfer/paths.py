"""Which way parameters came from each peer, for people who look."""

import structlog

from livescale.shared.links.link_path import LinkPath

MOST_PEERS = 16  # a report must stay small

log = structlog.get_logger()


class Paths:
    """The latest peers' paths, by name. What is new is said in the log, with its reason."""

    def __init__(self) -> None:
        self.by_peer: dict[str, str] = {}

    def note(self, peer: str, path: LinkPath) -> None:
        if self.by_peer.get(peer) != path.name:
            log.info("path_chosen", peer=peer, path=path.name, reason=path.reason)
        self.by_peer.pop(peer, None)
        self.by_peer[peer] = path.name
        if len(self.by_peer) > MOST_PEERS:
            del self.by_peer[next(iter(self.by_peer))]
