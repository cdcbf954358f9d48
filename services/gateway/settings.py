"""The settings of a gateway, each a flag of `livescale run gateway`."""

from typing import Annotated

from msgspec import Meta

from livescale.shared.runtime.settings import ProcessSettings


class GatewaySettings(ProcessSettings, frozen=True, kw_only=True):
    """The gateway: it serves the REST API, with vLLM's names of options where vLLM has them."""

    host: Annotated[str, Meta(description="Address to listen on; 0.0.0.0 for all")] = "127.0.0.1"
    port: Annotated[int, Meta(description="Port to listen on; 0 takes a free one", ge=0, le=65535)] = 8000
    api_key: Annotated[
        tuple[str, ...],
        Meta(
            description="A KEY, or NAME=KEY, that clients must send; may be repeated. The name admin, or no name, "
            "gives admin rights. Better set in the environment, separated by blanks"
        ),
    ] = ()
    api_keys: Annotated[str, Meta(description="YAML file with more keys and their limits; see SECURITY.md")] = ""
    ready_file: Annotated[
        str, Meta(description='File that is written once the gateway listens: {"url": ...}; empty writes none')
    ] = ""
    default_timeout_s: Annotated[float, Meta(description="Timeout of requests that name none", gt=0)] = 600.0
    max_timeout_s: Annotated[float, Meta(description="Longest timeout that a request may ask for", gt=0)] = 3600.0
    max_body_bytes: Annotated[int, Meta(description="Request bodies that are larger are refused with 413", ge=1024)] = (
        4 << 20
    )
    max_requests: Annotated[int, Meta(description="Requests under way at once; more are refused with 429", ge=1)] = 4096
    max_held: Annotated[
        int, Meta(description="Requests held while no router can be reached; more are refused with 429", ge=0)
    ] = 1024
    max_prompts: Annotated[int, Meta(description="Prompts in one completion request", ge=1)] = 128
    stream_queue: Annotated[
        int, Meta(description="Engine steps a client may lag behind before its request is cancelled", ge=1)
    ] = 1024
    unread_timeout_s: Annotated[
        float, Meta(description="Time a client may leave its answer unread before it is cut off", gt=0)
    ] = 10.0
    shutdown_grace_s: Annotated[int, Meta(description="Time that running requests get at shutdown", ge=0, le=8)] = 5
