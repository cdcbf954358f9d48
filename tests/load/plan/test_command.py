"""`livescale plan`, as it is typed."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import get_args

import pytest
from click.testing import CliRunner, Result

from livescale.load.plan.command import find_block_bytes, plan
from livescale.services.planner.plans.plan import Policy

A = ("--topology", "cluster-a", "--model", "8b")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(plan, arguments)


def test_it_says_who_sends_what_to_whom_and_how_long_it_takes() -> None:
    done = run(*A, "--targets", "9", "--sources", "a0/0,a1/0", "--serving", "a0/0:out=5GB/s")
    assert done.exit_code == 0, done.output
    assert "chains on cluster-a: 16 GB in 32 blocks to 9 targets" in done.output
    assert "chain 1: a0/0 -> a0 (7 targets, 1 lane)" in done.output
    assert "not from a0/0 (40% of its NIC out is taken)" in done.output


def test_a_copy_that_serving_sends_from_within_its_domain_is_left_alone() -> None:
    ends = *A, "--targets", "1", "--sources", "a0/0,a1/0"
    assert "chain 1: a0/0 -> a0/1" in run(*ends).output
    assert "chain 1: a1/0 -> a1/1" in run(*ends, "--serving", "a0/0:domain-out=90GB/s").output


def test_flows_over_the_network_are_listed_with_their_lanes() -> None:
    done = run(*A, "--targets", "4", "--sources", "a1", "--policy", "fanout")
    assert done.exit_code == 0, done.output
    assert ["a1", "a0/0", "network", "1", "of", "1", "0-31", "-"] in [
        line.split()[:8] for line in done.output.splitlines()
    ]


@pytest.mark.parametrize("policy", get_args(Policy))
def test_every_policy_is_drawn_and_told_to_programs(policy: str, tmp_path: Path) -> None:
    picture = tmp_path / "plan.svg"
    done = run(
        "--topology",
        "lambdascale-1",
        "--model",
        "13b",
        "--targets",
        "7",
        "--policy",
        policy,
        "--json",
        "--svg",
        str(picture),
    )
    assert done.exit_code == 0, done.output
    told = json.loads(done.output)
    assert told["policy"] == policy
    assert len(told["targets"]) == len(told["ready"]) == 7
    assert max(max(times.values()) for times in told["ready"].values()) == told["seconds"]
    assert told["seconds"] >= told["bound_seconds"] or policy == "local"
    root = ET.fromstring(picture.read_text())
    texts = [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert any(text.startswith(f"{policy} on lambdascale-1: 26 GB in 40 blocks to 7 targets") for text in texts)
    assert "node1/0" in " ".join(texts)


def test_pipelines_are_named_with_the_time_from_which_they_execute() -> None:
    done = run(
        "--topology", "lambdascale-1", "--model", "13b", "--targets", "6", "--sources", "2", "--policy", "binomial"
    )
    assert done.exit_code == 0, done.output
    assert done.output.count(": executable after ") == 3


def test_hosts_that_load_their_own_copies_read_their_disks() -> None:
    done = run(*A, "--targets", "8", "--policy", "local", "--json")
    told = json.loads(done.output)
    assert told["seconds"] == pytest.approx(12.8, rel=0.01)
    assert {flow["over"] for flow in told["flows"]} == {"disk", "domain"}


def test_hosts_that_have_a_copy_in_memory_do_not_read_their_disks() -> None:
    done = run(*A, "--targets", "16", "--policy", "local", "--sources", "a0", "--json")
    told = json.loads(done.output)
    senders = {(flow["sender"], flow["over"]) for flow in told["flows"] if flow["over"] != "domain"}
    assert senders == {("a0", "host_link"), ("a1", "disk")}


def test_a_large_plan_is_drawn_in_part_and_says_so(tmp_path: Path) -> None:
    cluster = tmp_path / "large.yaml"
    cluster.write_text(
        "name: large\nhosts:\n  - {name: h, count: 70, memory: 1 TiB, nic: 100 Gbps, disk: 1 GB/s, "
        "gpus: [{memory: 80 GB, host-link: 16 GB/s}]}\n"
    )
    picture = tmp_path / "plan.svg"
    done = run("--topology", str(cluster), "--model", "8b", "--targets", "69", "--svg", str(picture))
    assert done.exit_code == 0, done.output
    assert "More is in --json" in done.output
    assert "6 more targets are not drawn" in picture.read_text()
    assert "-> 58 more ->" in done.output


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--topology", "cluster-z", "--model", "8b", "--targets", "1"), "there is no topology 'cluster-z'"),
        (
            ("--topology", "cluster-a", "--model", "9q", "--targets", "1"),
            "'9q' is neither a directory nor a known size",
        ),
        ((*A, "--targets", "32"), "--targets 32: cluster-a has 31 GPUs besides the sources"),
        ((*A, "--targets", "0"), "--targets"),
        ((*A, "--targets", "1", "--sources", "32"), "--sources 32: cluster-a has 32 GPUs"),
        ((*A, "--targets", "1", "--sources", "b7"), "'b7' is neither a GPU nor a host of cluster-a"),
        ((*A, "--targets", "1", "--serving", "a0/0"), "write a node, a direction and a rate"),
        ((*A, "--targets", "1", "--serving", "a0/0:disk-out=1GB/s"), "domain-out is within the domain"),
        ((*A, "--targets", "1", "--serving", "x:out=1GB/s"), "'x' is neither a GPU nor a host"),
        ((*A, "--targets", "1", "--serving", "a0/0:out=fast"), "is not a number with its unit"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_a_remedy(arguments: tuple[str, ...], problem: str) -> None:
    done = run(*arguments)
    assert done.exit_code != 0
    assert problem in " ".join(done.output.replace("│", " ").split())


def test_a_picture_that_cannot_be_written_is_an_error() -> None:
    done = run(*A, "--targets", "1", "--svg", "/nowhere/plan.svg")
    assert done.exit_code == 1
    assert "--svg /nowhere/plan.svg: No such file or directory" in done.output


@pytest.mark.parametrize(
    ("model", "layers", "size_bytes"),
    [
        ("8b", 32, 16 * 10**9),
        ("70B", 80, 140 * 10**9),
        ("size=16GB,layers=32", 32, 16 * 10**9),
        ("size = 1 GiB, layers = 3", 3, 2**30),
    ],
)
def test_a_size_is_cut_into_equal_layers(model: str, layers: int, size_bytes: int) -> None:
    blocks = find_block_bytes(model)
    assert len(blocks) == layers
    assert sum(blocks) == size_bytes
    assert max(blocks) - min(blocks) <= 1


def test_a_checkpoint_has_the_blocks_that_its_configuration_says(tmp_path: Path) -> None:
    sizes = {"vocab_size": 100, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 64, "rms_norm_eps": 1e-5}
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", **sizes, **heads}
    (tmp_path / "config.json").write_text(json.dumps(config))
    layer = 2 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64)
    assert find_block_bytes(str(tmp_path)) == (2 * 100 * 64, layer, layer, layer, 2 * (64 + 100 * 64))


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        ("9b", "'9b' is neither a directory nor a known size"),
        ("/nowhere", "give others as size=16GB,layers=32"),
        ("size=16,layers=4", "16 has no unit"),
        ("size=16GB,layers=0", "layers=0 is out of bounds"),
        ("size=3B,layers=4", "3 bytes are less than one byte for each of 4 layers"),
    ],
)
def test_what_is_no_model_is_refused(model: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        find_block_bytes(model)
