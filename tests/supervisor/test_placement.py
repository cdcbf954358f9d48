"""Workers stand for the GPUs of a topology, in order."""

from pathlib import Path

import pytest

from livescale.services.supervisor.checks import BadSettings, count_workers
from livescale.services.supervisor.commands import service_commands
from livescale.services.supervisor.credentials import ROWS
from livescale.services.supervisor.placement import Placement, place_workers
from livescale.services.supervisor.settings import StackSettings
from tests.supervisor.test_commands import resolve

URLS = dict.fromkeys(ROWS, "nats://127.0.0.1:1")


def test_workers_stand_for_gpus_in_order() -> None:
    placement = place_workers(StackSettings(topology="cluster-b", workers=10))
    assert placement is not None
    assert placement.gpus[:2] == ("b0/0", "b0/1")
    assert placement.gpus[-1] == "b1/1"
    assert placement.hosts == ("b0", "b1")


def test_without_a_number_of_workers_there_are_no_more_than_gpus(tmp_path: Path) -> None:
    path = tmp_path / "one.yaml"
    path.write_text(
        "hosts: [{name: a, memory: 1 GiB, nic: 1 Gbps, disk: 1 GB/s, gpus: [{memory: 1 GiB, host-link: 1 GB/s}]}]"
    )
    assert place_workers(StackSettings(topology=str(path))) == Placement(str(path), ("a/0",))
    many = place_workers(StackSettings(topology="cluster-a"))
    assert many is not None
    assert len(many.gpus) == min(32, count_workers(StackSettings()))


def test_a_file_is_named_with_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lab.yaml").write_text(
        "hosts: [{name: a, memory: 1 GiB, nic: 1 Gbps, disk: 1 GB/s, gpus: [{memory: 1 GiB, host-link: 1 GB/s}]}]"
    )
    monkeypatch.chdir(tmp_path)
    placement = place_workers(StackSettings(topology="lab.yaml"))
    assert placement is not None
    assert placement.topology == str(tmp_path / "lab.yaml")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            StackSettings(topology="cluster-b", workers=17),
            "topology cluster-b has 16 GPUs for 17 workers; lower --work",
        ),
        (StackSettings(topology="cluster-z"), "topology: there is no topology 'cluster-z'"),
        (StackSettings(topology="/none/lab.yaml"), "topology: /none/lab.yaml: No such file or directory"),
        (StackSettings(shaped=True), "shaped: links are shaped to a topology; give --topology"),
        (StackSettings(topology="cluster-b", shaped=True, link_rate=1e8), "shaped and link-rate"),
    ],
)
def test_what_cannot_work_is_refused(settings: StackSettings, said: str) -> None:
    with pytest.raises(BadSettings) as refused:
        place_workers(settings)
    assert said in str(refused.value)


def test_each_process_is_told_its_place_and_the_registry_and_planner_the_cluster() -> None:
    settings = StackSettings(topology="cluster-b", workers=9)
    commands = {each.name: resolve(each) for each in service_commands(settings, URLS, place_workers(settings))}
    assert [name for name in commands if name.startswith("host")] == ["host-0", "host-1"]
    assert "place: b1/0\n" in commands["worker-8"]
    assert "host-name: b1\n" in commands["worker-8"]
    assert "place: b1\n" in commands["host-1"]
    assert "topology: cluster-b\n" in commands["registry-0"]
    assert "topology: cluster-b\n" in commands["planner-0"]
    assert "topology" not in commands["router-0"]
    assert "shaping-file: ''\n" in commands["worker-0"]


def test_shaped_links_are_told_the_file_that_they_share() -> None:
    placement = Placement("cluster-b", ("b0/0",), shaping_file="/run/links")
    commands = {each.name: resolve(each) for each in service_commands(StackSettings(workers=1), URLS, placement)}
    for name in ("worker-0", "host-0"):
        assert "shaping-file: /run/links\n" in commands[name]
        assert "topology: cluster-b\n" in commands[name]
