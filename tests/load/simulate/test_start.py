"""What those do who run a virtual cluster, before requests come."""

import gc

from livescale.load.simulate.start import COLLECT_AFTER, rare_collections


def test_garbage_is_looked_for_less_often_only_meanwhile() -> None:
    before = gc.get_threshold()
    with rare_collections():
        assert gc.get_threshold() == COLLECT_AFTER
    assert gc.get_threshold() == before
