"""From a body to the tokens of what it says, its texts or what the checkpoint's template makes of its messages, and to
the rules that the tokens of its answer follow."""

from dataclasses import dataclass

from msgspec.structs import replace

from livescale.services.gateway.bodies import ChatRequest, CompletionRequest, GenerationOptions
from livescale.services.gateway.checkpoint_text import CheckpointText, check_generates
from livescale.services.gateway.checks import check_options, check_template
from livescale.services.gateway.constraints import constraint_of
from livescale.services.gateway.grammars import Grammars
from livescale.services.gateway.models import RegisteredModels, Served, context_tokens
from livescale.services.gateway.options import banned, spellings
from livescale.services.gateway.reading import reading_of
from livescale.services.gateway.settings import GatewaySettings
from livescale.services.gateway.submission import Prompts, TokenRules, split_prompts
from livescale.services.gateway.templates import Templates, render_chat, rendering_way


@dataclass(frozen=True)
class PromptMaker:
    """Makes the prompts of bodies whose model is registered. The settings say how many one body may have, and whether
    chat templates that clients bring are used."""

    models: RegisteredModels
    templates: Templates
    grammars: Grammars
    settings: GatewaySettings

    async def of_texts(self, body: CompletionRequest) -> Prompts:
        """What the body asks to be continued, as tokens. Raises ApiError."""
        served, text = await self._find(body)
        prompts = [
            one
            if isinstance(one, list)
            else await self.models.encode(text, one, add_special_tokens=body.add_special_tokens)
            for one in split_prompts(body.prompt, self.settings.max_prompts)
        ]
        return Prompts(replace(body, model=served.name), served, text, context_tokens(served.entry), prompts)

    async def of_chat(self, body: ChatRequest, origin: str = "") -> Prompts:
        """What the body's conversation becomes, as tokens. Ids of calls are made from `origin`. Raises ApiError."""
        served, text = await self._find(body)
        body, entry = replace(body, model=served.name), served.entry
        check_template(body, is_trusted=self.settings.trust_request_chat_template)
        said = await render_chat(self.templates, text, body.messages, rendering_way(body), body.chat_template)
        prompt = await self.models.encode(text, said, add_special_tokens=body.add_special_tokens)
        reading = reading_of(body, entry.spec, text, origin, said)
        return Prompts(body, served, text, context_tokens(entry), [prompt], said, reading)

    async def rules(self, asked: Prompts, client: str) -> TokenRules:
        """The rules of the answer's tokens. A grammar among them has been tried. Raises ApiError."""
        body, text, reading = asked.body, asked.text, asked.reading
        constraint = (None if reading is None else reading.constraint) or constraint_of(body)
        grammar = "" if constraint is None else await self.grammars.of(constraint, text, client)
        if reading is not None and reading.grammar:
            grammar = reading.grammar
        param = None if constraint is None else constraint.param
        return TokenRules(await self._bad_words(body, text), grammar, param)

    async def _bad_words(self, body: GenerationOptions, text: CheckpointText) -> list[list[int]]:
        """The tokens of the words that no answer may have, in each way in which they are spelled."""
        words = []
        for word in body.bad_words:
            plain, spaced = [
                await self.models.encode(text, spelling, add_special_tokens=False) for spelling in spellings(word)
            ]
            words.extend(banned(plain, spaced))
        return words

    async def _find(self, body: GenerationOptions) -> tuple[Served, CheckpointText]:
        """The model that the body names, which must generate, and its text."""
        check_options(body)
        served = await self.models.find_served(body.model)
        text = await self.models.text(served.entry)
        check_generates(served.name, text.use)
        return served, text
