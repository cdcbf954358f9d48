"""All claims of all papers, in the order of the table."""

from livescale.load.claims import (
    blitzscale_live,
    blitzscale_plans,
    blitzscale_systems,
    deepserve,
    lambdascale_plans,
    lambdascale_systems,
    operators,
)

CLAIMS = tuple(
    claim
    for module in (
        *(blitzscale_plans, blitzscale_live, blitzscale_systems),
        *(lambdascale_plans, lambdascale_systems, deepserve, operators),
    )
    for claim in module.CLAIMS
)
