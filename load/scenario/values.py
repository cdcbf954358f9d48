"""The settings of a scenario's system, as its file gives them."""

from collections.abc import Mapping

from livescale.services.cli.options import PASSED_ON, UpOptions, check_values
from livescale.services.cli.systems import find_system
from livescale.services.supervisor.settings import WORKER_FLAGS
from livescale.shared.model.latency import find_latency
from livescale.shared.runtime.yaml_file import kebab

# Settings of `livescale up` that mean the same in a simulation. Others are about processes and real hardware.
SIMULATED = frozenset(
    (
        *("system", "workers", "routers", "dtype", "min_instances", "max_instances", "fixed_share"),
        *("downscale_delay_s", "max_model_len", "tensor_parallel_size", "engine_profile", "engine_speed"),
        *("host_cache", "host_cache_ttl", "plan_policy", "group_setup_s"),
        *("scaling", "live", "live_every_hop", "live_when", "routing"),
        *("disaggregation", "prefill_share", "decode_scaling", "pre_scale_decode", "ttft_slo", "tbt_slo"),
        *WORKER_FLAGS,
        *(field.name for field in PASSED_ON["worker_options"] if field.name != "threads"),
    )
)


def read_settings(given: Mapping[str, object]) -> tuple[dict[str, object], bool]:
    """The settings by field name, those of the system that is named among them, and whether it loads in no time.

    Raises ValueError.
    """
    try:
        values = check_values(dict(given), UpOptions)
        unlike = sorted(values.keys() - SIMULATED)
        if unlike:
            raise ValueError(f"{kebab(unlike[0])} has no effect in a simulation; leave it out")
        find_latency(str(values.get("engine_profile", "llama3-8b-a100")))
        name = values.pop("system", "")
        system = find_system(str(name)) if name else None
    except ValueError as error:
        raise ValueError(f"settings: {error}") from None
    return ({**system.values(), **values}, system.simulated) if system else (values, False)
