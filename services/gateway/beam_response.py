"""The response to a request whose choices are the best beams of a search. Nothing of it is told before that is over."""

from collections.abc import Sequence
from dataclasses import dataclass

from livescale.services.gateway.beams import BeamSearch
from livescale.services.gateway.bodies import GenerationOptions
from livescale.services.gateway.completion_response import CompletionResponse, Emit
from livescale.services.gateway.generation import Backend, Generation
from livescale.services.gateway.output import Output
from livescale.services.gateway.responses import Wait
from livescale.shared.bus.contract import Context
from livescale.shared.messages.requests import Submit


def searches_of(
    body: GenerationOptions, submits: Sequence[Submit], backend: Backend, context: Context
) -> list[BeamSearch]:
    """The search for each prompt; each of its beams is a submission."""

    def generate(submit: Submit, output: Output, follows: bool) -> Generation:
        return Generation(backend, submit, output, context, follows=follows)

    return [BeamSearch(submit, body.n, body.length_penalty, generate) for submit in submits[:: body.n]]


@dataclass(frozen=True)
class BeamResponse(CompletionResponse):
    """The same with a search for each prompt; each of its generations has the text of one beam, and does not run.
    `top` of the likeliest tokens are told, None where no log-probabilities are."""

    searches: Sequence[BeamSearch] = ()
    top: int | None = None

    async def _generate(self, emit: Emit, wait: Wait) -> None:
        for place, search in enumerate(self.searches):
            beams = await search.run(wait)
            for choice, beam in enumerate(beams):
                index = place * self.each + choice
                generation = self.generations[index]
                piece = generation.output.feed(beam.fresh(self.top))
                generation.generated.extend(piece.token_ids)
                generation.finish_reason = piece.finish_reason
                generation.cached_tokens, generation.version = search.cached_tokens, search.version
                await emit(index, piece)
