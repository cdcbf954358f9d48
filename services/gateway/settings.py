"""The settings of a gateway, each a flag of `livescale run gateway`."""

from typing import Annotated

from msgspec import Meta

from livescale.shared.runtime.settings import ProcessSettings


class GatewaySettings(ProcessSettings, frozen=True, kw_only=True):
    """The gateway: it serves the REST API, with vLLM's names of options where vLLM has them."""

    host: Annotated[str, Meta(description="IP address to listen on; 0.0.0.0 is all of this machine")] = "127.0.0.1"
    port: Annotated[int, Meta(description="TCP port to listen on; 0 takes a free one", ge=0, le=65535)] = 8000
    api_key: Annotated[
        tuple[str, ...],
        Meta(
            description="A key that clients must send: KEY or NAME=KEY; may be given several times, in the "
            "environment separated by blanks. The name admin, or no name, gives admin rights. The environment hides a "
            "key from other users, which a flag does not"
        ),
    ] = ()
    api_keys: Annotated[str, Meta(description="YAML file of API keys and their rate limits; SECURITY.md shows it")] = ""
    allowed_origins: Annotated[
        tuple[str, ...],
        Meta(
            description="Origin whose pages may call this API from a browser, such as https://chat.example.org, or *; "
            "may be given several times, in the environment separated by blanks"
        ),
    ] = ()
    ready_file: Annotated[
        str, Meta(description='File to write {"url": ...} to once the gateway listens; without it none is written')
    ] = ""
    trust_request_chat_template: Annotated[
        bool,
        Meta(
            description="Render chat templates that requests bring. A template is a program: a bad one may hold up the "
            "chats of others for seconds"
        ),
    ] = False
    default_timeout_s: Annotated[
        float, Meta(description="Seconds that a request may take if it gives no timeout", gt=0)
    ] = 600.0
    max_timeout_s: Annotated[
        float, Meta(description="Most seconds that a request may ask for as its timeout", gt=0)
    ] = 3600.0
    max_body_bytes: Annotated[
        int, Meta(description="Most bytes of a request body; a larger one is refused with HTTP 413", ge=1024)
    ] = 4 << 20
    responses_seconds: Annotated[
        float,
        Meta(description="Seconds that answers of /v1/responses are kept for their clients; 0 keeps none", ge=0),
    ] = 3600.0
    responses_bytes: Annotated[
        int,
        Meta(
            description="Most bytes of answers that each gateway keeps for one API key; the oldest give way",
            ge=0,
        ),
    ] = 16 << 20
    max_requests: Annotated[
        int, Meta(description="Most requests under way at once; more are refused with HTTP 429", ge=1)
    ] = 4096
    max_held: Annotated[
        int,
        Meta(description="Most requests that are held while no router answers; more are refused with HTTP 429", ge=0),
    ] = 1024
    max_prompts: Annotated[int, Meta(description="Most prompts in one completion request", ge=1)] = 128
    stream_queue: Annotated[
        int, Meta(description="Most engine steps that a client may lag behind before its request is cancelled", ge=1)
    ] = 1024
    unread_timeout_s: Annotated[
        float,
        Meta(
            description="Seconds that a client may leave its answer unread. Then the request is cancelled; the client "
            "gets as long again to read the rest, which ends with an error",
            gt=0,
        ),
    ] = 60.0
    shutdown_grace_s: Annotated[
        int, Meta(description="Seconds that running requests get to end at shutdown", ge=0, le=8)
    ] = 5
