"""Which role may publish and subscribe to which subjects on the system's own NATS server.

A role may answer only what it serves, and only to the process that asked; it cannot listen to answers for others.
Processes of one role share a credential, so a worker could hear what another worker is told.
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from livescale.shared import subjects
from livescale.shared.bus.codec import bucket_name, fill_wildcards
from livescale.shared.bus.contract import Call, Topic
from livescale.shared.bus.identity import INBOX
from livescale.shared.messages.responses import RESPONSES

OPERATOR = "operator"
# Registering a model takes as long as fetching it.
ANSWER_TIME = "1h"


@dataclass(frozen=True)
class RoleSubjects:
    """The subjects of a role: calls that it answers and asks, topics that it tells and hears.

    `keeps` says that it has the server keep state and events, `keeps_responses` that it keeps responses for clients.
    """

    answers: tuple[Call[Any, Any], ...] = ()
    asks: tuple[Call[Any, Any], ...] = ()
    tells: tuple[Topic[Any], ...] = ()
    hears: tuple[Topic[Any], ...] = ()
    keeps: bool = False
    keeps_responses: bool = False


EVERYBODY = RoleSubjects(answers=(subjects.METRICS,), asks=(subjects.JOIN,), hears=(subjects.STALE,))
MEMBERSHIP = (subjects.HEARTBEAT, subjects.LEAVE, subjects.AWAY)  # every process tells them, under its role's name
SUPERVISION = (subjects.PROCESS,)  # the supervisor tells it, with the operator's credential

ROLES: Mapping[str, RoleSubjects] = {
    "gateway": RoleSubjects(
        answers=(subjects.VOCABULARY,),
        asks=(
            *(subjects.SUBMIT, subjects.REPLAY, subjects.METRICS, subjects.MODELS, subjects.SNAPSHOT),
            *(subjects.REGISTER, subjects.REMOVE, subjects.SCALE, subjects.ROLE, subjects.DECISIONS),
        ),
        tells=(subjects.CANCEL, subjects.CANCEL_WORK),
        hears=(subjects.TOKENS, subjects.LEASE, subjects.HEARTBEAT),
        keeps_responses=True,
    ),
    "router": RoleSubjects(
        answers=(subjects.SUBMIT,),
        asks=(subjects.ADMIT, subjects.RUNNING, subjects.MODELS, subjects.SNAPSHOT, subjects.ROLE, subjects.HAND_OVER),
        tells=(subjects.TOKENS, subjects.CANCEL_WORK),
        hears=(subjects.CANCEL, subjects.ENDED, subjects.MOVED, subjects.HEARTBEAT, subjects.LEASE),
    ),
    "registry": RoleSubjects(
        answers=(
            *(subjects.JOIN, subjects.SNAPSHOT, subjects.MODELS, subjects.MANIFEST, subjects.ADAPTER),
            *(subjects.REGISTER, subjects.REMOVE, subjects.KEEP, subjects.INCIDENTS),
        ),
        asks=(
            *(subjects.CHECK_MODEL, subjects.READ_MODEL, subjects.FETCH_MODEL, subjects.RELEASE_MODEL),
            subjects.SEND,
        ),
        tells=(subjects.STALE, subjects.LEASE, subjects.DEATH),
        hears=(
            *(subjects.HEARTBEAT, subjects.LEAVE, subjects.AWAY, subjects.PROCESS),
            *(subjects.MODEL_READ, subjects.TRANSFER),
        ),
        keeps=True,
    ),
    "planner": RoleSubjects(
        answers=(subjects.SCALE, subjects.SCALES, subjects.ROLE),
        asks=(
            *(subjects.LOAD, subjects.SEND, subjects.SERVE, subjects.DRAIN, subjects.ABORT),
            *(subjects.SNAPSHOT, subjects.MANIFEST, subjects.KEEP, subjects.HELP, subjects.PIPELINE),
            subjects.CHANGE_ROLE,
        ),
        tells=(subjects.PLAN, subjects.PIPELINE_OVER),
        hears=(subjects.TRANSFER, subjects.BLOCK, subjects.INSTANCE, subjects.LEASE, subjects.HEARTBEAT),
        keeps=True,
    ),
    "monitor": RoleSubjects(
        answers=(subjects.DECISIONS,),
        asks=(subjects.SCALE, subjects.SCALES, subjects.MODELS, subjects.SNAPSHOT),
        tells=(subjects.DECISION,),
        hears=(subjects.HEARTBEAT, subjects.LEASE, subjects.PLAN),
    ),
    "host": RoleSubjects(
        answers=(
            *(subjects.CHECK_MODEL, subjects.READ_MODEL, subjects.FETCH_MODEL, subjects.RELEASE_MODEL),
            *(subjects.SEND, subjects.ABORT),
        ),
        tells=(subjects.MODEL_READ, subjects.TRANSFER),
    ),
    "worker": RoleSubjects(
        answers=(
            *(subjects.LOAD, subjects.SEND, subjects.SERVE, subjects.DRAIN, subjects.ABORT),
            *(subjects.ADMIT, subjects.REPLAY, subjects.RUNNING, subjects.HELP, subjects.PULL, subjects.TOOK),
            *(subjects.MEETING, subjects.RANK_TAKE, subjects.RANK_ADAPTER, subjects.RANK_LEFT),
            *(subjects.PIPELINE, subjects.MOVE_KV, subjects.GIVE_KV, subjects.STAGE_ADAPTER),
            *(subjects.RESERVE, subjects.TAKE_OVER, subjects.RELEASE_KV, subjects.HAND_OVER, subjects.CHANGE_ROLE),
            subjects.GREET,
        ),
        asks=(
            *(subjects.PULL, subjects.TOOK),
            *(subjects.MEETING, subjects.RANK_TAKE, subjects.RANK_ADAPTER, subjects.RANK_LEFT),
            *(subjects.MOVE_KV, subjects.GIVE_KV, subjects.STAGE_ADAPTER),
            *(subjects.RESERVE, subjects.TAKE_OVER, subjects.RELEASE_KV, subjects.GREET),
            *(subjects.VOCABULARY, subjects.SNAPSHOT, subjects.ADAPTER, subjects.SEND),
        ),
        tells=(
            *(subjects.TOKENS, subjects.ENDED, subjects.MOVED, subjects.WITHDRAW),
            *(subjects.TRANSFER, subjects.BLOCK, subjects.INSTANCE),
            *(subjects.STAGE_BATCH, subjects.STAGE_DONE, subjects.PIPELINE_OVER, subjects.RANK_STEP),
        ),
        hears=(
            *(subjects.CANCEL_WORK, subjects.WITHDRAW, subjects.DEATH),
            *(subjects.STAGE_BATCH, subjects.STAGE_DONE, subjects.PIPELINE_OVER, subjects.RANK_STEP),
        ),
    ),
}


def permissions(role: str, namespace: str) -> dict[str, Any]:
    """What one role may do, in the form of nats-server's configuration."""
    row, prefix = ROLES[role], f"livescale.{namespace}."
    own = f"{INBOX}.{role}.>"
    memberships = [fill_wildcards(topic.pattern, {"service": role}) for topic in MEMBERSHIP]

    def those(*entries: Call[Any, Any] | Topic[Any]) -> list[str]:
        return [prefix + fill_wildcards(entry.pattern, {}) for entry in entries]

    return {
        "publish": [
            *those(*EVERYBODY.asks, *row.asks, *row.tells),
            *(prefix + subject for subject in memberships),
            own,  # the echo by which a connection is found to be alive
            *(_keeping(namespace) if row.keeps else []),
            *(_using(bucket_name(namespace, RESPONSES)) if row.keeps_responses else []),
        ],
        "subscribe": [*those(*EVERYBODY.answers, *EVERYBODY.hears, *row.answers, *row.hears), own, "$SRV.>"],
        "allow_responses": {"max": 1, "expires": ANSWER_TIME},
    }


def _keeping(namespace: str) -> list[str]:
    """The JetStream subjects of this system's state and of the stream of its events."""
    return [*_using(bucket_name(namespace)), f"$JS.API.STREAM.CREATE.livescale-{namespace}-events"]


def _using(bucket: str) -> list[str]:
    """The JetStream subjects of a key-value bucket."""
    verbs = ("STREAM.CREATE", "STREAM.UPDATE", "STREAM.INFO", "STREAM.MSG.GET", "DIRECT.GET")
    return [
        *(f"$JS.API.{verb}.KV_{bucket}" for verb in verbs),
        f"$JS.API.DIRECT.GET.KV_{bucket}.>",
        f"$KV.{bucket}.>",
        "$JS.API.INFO",
    ]


def fresh_passwords() -> dict[str, str]:
    """A new password for each role; the operator's opens everything."""
    return {role: secrets.token_hex(24) for role in (*ROLES, OPERATOR)}


def authorization(passwords: Mapping[str, str], namespace: str) -> dict[str, Any]:
    """The part of nats-server's configuration that lets in one user for each role, and no others."""
    users: list[dict[str, Any]] = [{"user": OPERATOR, "password": passwords[OPERATOR]}]
    for role in ROLES:
        users.append({"user": role, "password": passwords[role], "permissions": permissions(role, namespace)})
    return {"users": users}
