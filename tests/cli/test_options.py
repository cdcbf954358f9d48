"""Flags, environment, file, default: which counts, and what is refused."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Literal

import click
import pytest
from click.testing import CliRunner, Result
from msgspec import Meta
from msgspec.structs import fields

from livescale.services.cli.options import settings_options
from livescale.shared.runtime.settings import Settings

Run = Callable[..., Result]


class Engine(Settings, frozen=True, kw_only=True):
    nats_url: Annotated[str, Meta(description="The bus")] = "nats://default"
    max_num_seqs: Annotated[int, Meta(description="Requests at once", ge=1, le=64)] = 16
    rate: Annotated[float, Meta(description="Bytes a second", gt=0)] = 1.5
    limit: Annotated[int, Meta(ge=1)] | None = None
    dtype: Annotated[Literal["float32", "bfloat16"], Meta(description="Type")] = "float32"
    checks: Annotated[bool, Meta(description="Check sums")] = True
    id: Annotated[str, Meta(description="Id", pattern="^[a-z0-9-]*$")] = ""
    names: Annotated[tuple[str, ...], Meta(description="A name")] = ()
    api_key: Annotated[str, Meta(description="Key")] = ""


@pytest.fixture
def run() -> Run:
    @click.command()
    @settings_options(Engine)
    def engine(settings: Engine) -> None:
        click.echo(repr(settings))

    def call(*arguments: str, **variables: str) -> Result:
        return CliRunner().invoke(engine, arguments, env=variables)

    return call


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        path = tmp_path / "engine.yaml"
        path.write_text(text)
        return str(path)

    return write


Write = Callable[[str], str]


def test_without_anything_the_defaults_of_the_struct_hold(run: Run) -> None:
    assert run().output.strip() == repr(Engine())


def test_a_flag_counts_before_the_environment_and_that_before_the_file(run: Run, file: Write) -> None:
    config = file("max-num-seqs: 2\nrate: 3")
    assert "max_num_seqs=2, rate=3.0" in run("--config", config).output
    assert "max_num_seqs=3, rate=3.0" in run("--config", config, LIVESCALE_MAX_NUM_SEQS="3").output
    assert (
        "max_num_seqs=4, rate=3.0" in run("--config", config, "--max-num-seqs", "4", LIVESCALE_MAX_NUM_SEQS="3").output
    )


def test_the_place_of_config_among_the_flags_does_not_matter(run: Run, file: Write) -> None:
    config = file("max-num-seqs: 2\nrate: 3")
    assert "max_num_seqs=4, rate=3.0" in run("--max-num-seqs=4", "--config", config).output


def test_nats_url_is_read_from_both_variables_and_ours_counts_first(run: Run) -> None:
    assert "nats_url='nats://plain'" in run(NATS_URL="nats://plain").output
    assert "nats_url='nats://ours'" in run(NATS_URL="nats://plain", LIVESCALE_NATS_URL="nats://ours").output


def test_every_kind_of_field_is_read(run: Run) -> None:
    output = run("--no-checks", "--name", "a", "--name", "b", "--limit", "3", "--dtype", "bfloat16").output
    assert "limit=3, dtype='bfloat16', checks=False" in output
    assert "names=('a', 'b')" in output
    assert "names=('a', 'b')" in run(LIVESCALE_NAMES="a b").output
    assert "checks=False" in run(LIVESCALE_CHECKS="false").output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--max-num-seqs", "0"], "'--max-num-seqs'"),
        (["--max-num-seqs", "65"], "65 is not in the range 1<=x<=64"),
        (["--max-num-seqs", "many"], "'many' is not a valid integer range"),
        (["--rate", "0"], "0.0 is not in the range x>0"),
        (["--limit", "0"], "'--limit'"),
        (["--dtype", "float8"], "'float8' is not one of 'bfloat16', 'float32'"),
        (["--id", "Ä"], "'--id'"),
        (["--max-nun-seqs", "1"], "Did you mean '--max-num-seqs'?"),
    ],
)
def test_a_bad_flag_is_refused_by_name(run: Run, arguments: list[str], said: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert said in result.output


def test_a_bad_variable_is_refused_by_name(run: Run) -> None:
    result = run(LIVESCALE_MAX_NUM_SEQS="many")
    assert result.exit_code == 2
    assert "LIVESCALE_MAX_NUM_SEQS" in result.output


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max-nun-seqs: 1", "unknown key 'max-nun-seqs'; did you mean 'max-num-seqs'?"),
        ("max_num_seqs: 1", "unknown key 'max_num_seqs'; did you mean 'max-num-seqs'?"),
        ("zzz: 1", "known are api-key, checks, dtype"),
        ("1: 1", "unknown key '1'"),
        ("max-num-seqs: many", "max-num-seqs: Expected `int`, got `str`"),
        ("max-num-seqs: 65", "max-num-seqs: Expected `int` <= 64"),
        ("names: [a, 1]", "names[1]: Expected `str`, got `int`"),
        ("- a", "must be a mapping, not list"),
        ("a: [", "not YAML"),
    ],
)
def test_a_bad_file_is_refused_with_its_name_and_the_place(run: Run, file: Write, text: str, said: str) -> None:
    result = run("--config", file(text))
    assert result.exit_code == 2
    assert said in result.output
    assert "engine.yaml" in result.output


def test_a_file_that_is_not_there_is_named(run: Run) -> None:
    result = run("--config", "/nowhere/engine.yaml")
    assert result.exit_code == 2
    assert "/nowhere/engine.yaml: No such file or directory" in result.output


def test_an_empty_file_changes_nothing(run: Run, file: Write) -> None:
    assert run("--config", file("# nothing yet\n")).output.strip() == repr(Engine())


def test_the_resolved_configuration_can_be_printed_and_read_again(run: Run, file: Write) -> None:
    printed = run("--max-num-seqs", "4", "--name", "a", "--print-config").output
    assert "max-num-seqs: 4" in printed
    assert "max_num_seqs=4" in run("--config", file(printed)).output


def test_a_secret_is_not_printed(run: Run) -> None:
    output = run("--print-config", LIVESCALE_API_KEY="sesame").output
    assert "sesame" not in output
    assert "api-key: '***'" in output


def test_help_shows_description_variable_default_and_bounds(run: Run) -> None:
    words = " ".join(run("--help").output.split())
    assert "Requests at once. [env var: LIVESCALE_MAX_NUM_SEQS; default: 16; 1<=x<=64]" in words
    assert "[env var: LIVESCALE_NATS_URL, NATS_URL; default: nats://default]" in words


class Whole(Settings, frozen=True, kw_only=True):
    first: int = 1
    passed: Mapping[str, float] = {}
    last: int = 2


def test_fields_of_another_struct_are_passed_on_where_they_are_given(file: Write) -> None:
    rate, limit = (field for field in fields(Engine) if field.name in ("rate", "limit"))

    @click.command()
    @settings_options(Whole, {"passed": [rate, limit]})
    def whole(settings: Whole) -> None:
        click.echo(repr(settings))

    def call(*words: str) -> str:
        return CliRunner().invoke(whole, words).output

    assert call().strip() == repr(Whole())
    assert call("--limit", "3", "--last", "5").strip() == repr(Whole(last=5, passed={"limit": 3}))
    assert call("--config", file("rate: 2.5")).strip() == repr(Whole(passed={"rate": 2.5}))
    assert "0.0 is not in the range x>0" in call("--rate", "0.0")
    assert "did you mean 'limit'?" in call("--config", file("limits: 3"))
    assert call("--limit", "3", "--print-config") == "first: 1\nrate: null\nlimit: 3\nlast: 2\n"
