"""What a worker says of itself, before it has a model and with one."""

from tests.worker.fleet import fleet


async def test_a_spare_worker_says_what_it_is_and_nothing_of_a_model() -> None:
    async with fleet("w-1") as made:
        report = made.reports["w-1"]
        assert (report.id, report.state, report.device, report.engine) == ("w-1", "spare", "cpu", "torch")
        assert (report.model, report.holding, report.load, report.flows_out) == (None, None, None, 0)


async def test_a_serving_worker_says_what_it_holds_and_what_there_is_room_for() -> None:
    async with fleet("w-1") as made:
        await made.serving("w-1")
        await made.until(lambda: made.state("w-1") == "serving")
        report, blocks = made.reports["w-1"], len(made.manifest.blocks)
        assert report.holding is not None
        assert (report.holding.ready, report.holding.total) == (list(range(blocks)), blocks)
        assert (report.version, report.instance, report.rank) == (made.manifest.version, "m-w-1", 0)
        assert report.load is not None
        assert report.load.running_requests == 0
        assert report.kv_blocks > 0
        assert (report.helping, report.live_layers, report.pipeline) == ([], 0, None)
