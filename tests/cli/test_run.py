"""`livescale run`: every service has a command, made from its settings."""

import importlib

import pytest
from click.testing import CliRunner

from livescale.services.cli.main import cli
from livescale.services.cli.run import SUMMARIES


@pytest.mark.parametrize("service", SUMMARIES)
def test_a_service_has_the_options_that_its_settings_have(service: str) -> None:
    result = CliRunner().invoke(cli, ["run", service, "--id", f"{service}-7", "--print-config"])
    assert result.exit_code == 0, result.output
    settings = getattr(
        importlib.import_module(f"livescale.services.{service}.settings"), f"{service.capitalize()}Settings"
    )
    printed = [line.partition(":")[0] for line in result.output.splitlines() if line[0].isalpha()]
    assert printed == [name.replace("_", "-") for name in settings.__struct_fields__]
    assert f"id: {service}-7" in result.output
