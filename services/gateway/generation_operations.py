"""The endpoints that generate, or say what would be generated from."""

from livescale.services.gateway import bodies, messages_shape, shapes
from livescale.services.gateway import responses_objects as objects
from livescale.services.gateway.completions import Completions
from livescale.services.gateway.messages_api import MessagesApi
from livescale.services.gateway.messages_request import CountRequest, MessagesRequest
from livescale.services.gateway.openapi import BODY_ERRORS, BUS_ERRORS, GENERATION_ERRORS, MODEL_ERRORS, Operation
from livescale.services.gateway.render_api import RenderApi, Rendered
from livescale.services.gateway.responses_api import ResponsesApi
from livescale.services.gateway.responses_input import QUERY, ItemList
from livescale.services.gateway.responses_request import ResponsesRequest


def generation_operations(completions: Completions, responses: ResponsesApi) -> list[Operation]:
    """All of them; they share the one way in which texts are generated."""
    return [
        *_generation(completions),
        *_rendering(RenderApi(completions)),
        *_messages(MessagesApi(completions)),
        *_responses(responses),
    ]


def _generation(completions: Completions) -> list[Operation]:
    return [
        Operation(
            "POST",
            "/v1/chat/completions",
            completions.chat,
            "Continue a conversation, by the checkpoint's chat template",
            {200: shapes.ChatCompletion},
            body=bodies.ChatRequest,
            stream=shapes.ChatCompletionChunk,
            errors=GENERATION_ERRORS,
            protected=True,
        ),
        Operation(
            "POST",
            "/v1/completions",
            completions.completion,
            "Continue one or more texts",
            {200: shapes.Completion},
            body=bodies.CompletionRequest,
            stream=shapes.Completion,
            errors=GENERATION_ERRORS,
            protected=True,
        ),
    ]


def _rendering(api: RenderApi) -> list[Operation]:
    """What would be submitted for the bodies of the endpoints that generate."""
    errors = (*BODY_ERRORS, *MODEL_ERRORS)
    return [
        Operation(
            "POST",
            "/v1/chat/completions/render",
            api.chat,
            "The tokens that a conversation becomes, and its sampling; nothing is generated",
            {200: Rendered},
            body=bodies.ChatRequest,
            errors=errors,
            protected=True,
        ),
        Operation(
            "POST",
            "/v1/completions/render",
            api.completion,
            "The tokens that each prompt becomes, and their sampling; nothing is generated",
            {200: list[Rendered]},
            body=bodies.CompletionRequest,
            errors=errors,
            protected=True,
        ),
    ]


def _messages(api: MessagesApi) -> list[Operation]:
    """Conversations as Anthropic's clients have them."""
    return [
        Operation(
            "POST",
            "/v1/messages",
            api.create,
            "Answer a conversation as Anthropic's API does",
            {200: messages_shape.Message},
            body=MessagesRequest,
            stream=messages_shape.MessageEvent,
            errors=GENERATION_ERRORS,
            error=messages_shape.MessageErrorBody,
            protected=True,
        ),
        Operation(
            "POST",
            "/v1/messages/count_tokens",
            api.count,
            "How many tokens a conversation has",
            {200: messages_shape.TokenCount},
            body=CountRequest,
            errors=(*BODY_ERRORS, *MODEL_ERRORS),
            error=messages_shape.MessageErrorBody,
            protected=True,
        ),
    ]


def _responses(api: ResponsesApi) -> list[Operation]:
    """Responses, which are made like chats and kept for a while."""
    return [
        Operation(
            "POST",
            "/v1/responses",
            api.create,
            "Answer an input, after an earlier response if one is named, and keep the response for a while",
            {200: objects.ResponseObject},
            body=ResponsesRequest,
            stream=objects.ResponseEvent,
            errors=GENERATION_ERRORS,
            protected=True,
        ),
        Operation(
            "GET",
            "/v1/responses/{response_id}",
            api.kept.retrieve,
            "A response that was kept",
            {200: objects.ResponseObject},
            errors=(400, 404, *BUS_ERRORS),
            protected=True,
        ),
        *_inputs(api),
        Operation(
            "DELETE",
            "/v1/responses/{response_id}",
            api.kept.delete,
            "Keep a response no longer",
            {200: objects.DeletedResponse},
            errors=(404, *BUS_ERRORS),
            protected=True,
        ),
        Operation(
            "POST",
            "/v1/responses/{response_id}/cancel",
            api.kept.cancel,
            "Cancel a response that is made in the background",
            {200: objects.ResponseObject},
            errors=(400, 404, 500, *BUS_ERRORS),
            protected=True,
        ),
    ]


def _inputs(api: ResponsesApi) -> list[Operation]:
    """The operations that tell what a response is made of, and count it."""
    return [
        Operation(
            "GET",
            "/v1/responses/{response_id}/input_items",
            api.kept.input_items,
            "What a response that was kept was made of, earlier turns included",
            {200: ItemList},
            query=QUERY,
            errors=(400, 404, *BUS_ERRORS),
            protected=True,
        ),
        Operation(
            "POST",
            "/v1/responses/input_tokens",
            api.count,
            "How many tokens an input has, after an earlier response if one is named",
            {200: objects.InputTokens},
            body=ResponsesRequest,
            errors=(*BODY_ERRORS, *MODEL_ERRORS),
            protected=True,
        ),
    ]
