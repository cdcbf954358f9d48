"""Which settings of a worker a system passes on."""

from livescale.services.cli.options import WORKER_OPTIONS
from livescale.services.supervisor.settings import WORKER_FLAGS
from livescale.services.worker.settings import WorkerSettings
from livescale.shared.runtime.settings import BusSettings


def test_each_setting_of_a_worker_is_told_it_is_its_machines_or_is_only_for_the_environment() -> None:
    told = {*WORKER_FLAGS, "device", "engine", "engine_profile", "engine_speed", "transport", "share_memory"}
    own = {"id", "host_name", "bind", "system_bind", "system_file", "place", "topology", "shaping_file", "link_rate"}
    environment = {"log_format", "kernels", "cuda_graphs"}
    marked = {field.name for fields in WORKER_OPTIONS.values() for field in fields}
    known = told | own | environment | marked | {*BusSettings.__struct_fields__, "log_level"}
    assert set(WorkerSettings.__struct_fields__) == known
