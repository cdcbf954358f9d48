"""Hosts that have room for one model: what they hold for nobody gives way."""

from msgspec.structs import replace

from livescale.load.simulate.cluster import virtual_cluster
from livescale.load.simulate.start import quiet, register
from livescale.services.host.settings import HostSettings
from livescale.shared.messages.registry import AskModels
from livescale.shared.model.block_layout import block_layouts
from livescale.shared.simulation import virtual_time
from livescale.shared.subjects import MODELS
from tests.load.simulate.clusters import CONFIG, model, settings, until_serving

OTHER = replace(CONFIG, num_hidden_layers=11)


def test_a_model_that_is_registered_otherwise_while_it_is_read_is_served_though_both_do_not_fit() -> None:
    size_bytes = sum(block.size_bytes for block in block_layouts(CONFIG, "bfloat16"))
    told = replace(settings(2), host=HostSettings(cache_bytes=int(1.3 * size_bytes)))
    told = replace(told, models={**told.models, "/models/other": OTHER})

    async def main() -> None:
        async with virtual_cluster(told) as made:
            await register(made, model())
            await register(made, model(path="/models/other"))
            await until_serving(made, 1)
            [entry] = (await made.operator.call(MODELS, AskModels(), timeout=5.0)).models
            assert (entry.spec.path, entry.state) == ("/models/other", "ready")

    with quiet():
        virtual_time.run(main())
