"""`livescale`: the one command line of the project."""

from importlib.metadata import version

import click

from livescale.services.cli.groups import LazyCommand, LazyGroup

# `load` is named by string only: it imports services, services never import it.
COMMANDS = {
    "up": LazyCommand("livescale.services.cli.up:up", "Serve models on this machine until Ctrl-C."),
    "systems": LazyCommand(
        "livescale.services.cli.systems:systems", "List systems to compare with: names for some settings of up."
    ),
    "run": LazyCommand("livescale.services.cli.run:run", "Run one service, for a system on several machines."),
    "demo": LazyCommand(
        "livescale.load.demo.command:demo", "Scale out under a burst of requests, and check every token."
    ),
    "load": LazyCommand("livescale.load.command:load", "Send an open-loop load to an OpenAI-compatible server."),
    "simulate": LazyCommand(
        "livescale.load.scenario.command:simulate", "Try a cluster, a load and faults under virtual time."
    ),
    "advise": LazyCommand(
        "livescale.load.advise.command:advise", "Find the smallest pool that meets its SLOs under a trace."
    ),
    "claims": LazyCommand(
        "livescale.load.claims.command:claims", "Check what the papers claim, and print one table of it."
    ),
    "chaos": LazyCommand("livescale.load.chaos.command:chaos", "Kill processes under load, and check every token."),
    "models": LazyCommand("livescale.services.cli.models:models", "List the architectures that are served."),
    "check": LazyCommand(
        "livescale.services.cli.models:check", "Say whether a checkpoint will be served, and what it needs."
    ),
    "make-model": LazyCommand(
        "livescale.load.make_model_command:make_model_command",
        "Make a checkpoint with random parameters, to try things with.",
    ),
    "make-adapter": LazyCommand(
        "livescale.load.make_adapter_command:make_adapter_command", "Make a LoRA adapter with random parameters."
    ),
    "profile": LazyCommand(
        "livescale.load.profile.command:profile", "Measure how fast this machine runs a model, for --engine modelled."
    ),
    "pack": LazyCommand(
        "livescale.services.host.pack_command:pack", "Write a checkpoint in the form that hosts read fastest."
    ),
    "credentials": LazyCommand(
        "livescale.services.supervisor.credentials_command:credentials", "Write the passwords of a NATS server."
    ),
    "status": LazyCommand("livescale.services.cli.status:status", "Show processes, workers, instances and queues."),
    "metrics": LazyCommand("livescale.services.cli.metrics:metrics", "Print all processes' metrics, or their ports."),
    "scale": LazyCommand("livescale.services.cli.scale:scale", "Set the number of instances of a model."),
    "role": LazyCommand("livescale.services.cli.role:role", "Have an instance prefill, decode, or do both."),
    "why": LazyCommand("livescale.services.cli.why:why", "Explain why a model was scaled, or was not."),
    "topology": LazyCommand(
        "livescale.services.cli.topology:topology", "Show and draw a cluster, from a file or this machine."
    ),
    "plan": LazyCommand("livescale.load.plan.command:plan", "Plan a scale-out on any cluster, and predict its time."),
    "tap": LazyCommand("livescale.services.cli.tap:tap", "Print the messages on the bus, decoded."),
    "bench": LazyCommand(
        "livescale.services.cli.main:bench", "Measure the engine, the control plane, transfers and scaling."
    ),
}
BENCHES = {
    "engine": LazyCommand(
        "livescale.load.bench.engine.command:engine",
        "Compare the engine on one core with transformers, vLLM and llama.cpp.",
    ),
    "embeddings": LazyCommand(
        "livescale.load.bench.models.embeddings_command:embeddings",
        "Compare encoders' vectors on one core with sentence-transformers.",
    ),
    "adapters": LazyCommand(
        "livescale.load.bench.models.adapters_command:adapters",
        "Measure what LoRA adapters cost a step of decoding, on one core.",
    ),
    "control": LazyCommand(
        "livescale.load.bench.control.command:control",
        "Measure the latency that gateway, router and bus add to the engine.",
    ),
    "transfer": LazyCommand(
        "livescale.load.bench.transfer.command:transfer",
        "Measure how fast parameters travel, over one hop and along chains.",
    ),
    "scale": LazyCommand(
        "livescale.load.bench.transfer.scale:scale",
        "Measure the time from a decision to complete parameters on new workers.",
    ),
    "live": LazyCommand(
        "livescale.load.bench.live.command:live",
        "Compare live scale-out with one that waits for all parameters.",
    ),
    "pipeline": LazyCommand(
        "livescale.load.bench.pipeline.command:pipeline",
        "Measure pipelines of new instances that serve together while they load.",
    ),
    "roles": LazyCommand(
        "livescale.load.bench.roles.command:roles",
        "Compare prefill and decode at two instances with two that do both.",
    ),
    "auto-roles": LazyCommand(
        "livescale.load.bench.roles.auto:auto_roles",
        "Compare roles that the router gives with fixed ones, under virtual time.",
    ),
    "role-sources": LazyCommand(
        "livescale.load.bench.roles.sources:role_sources",
        "Compare loads whose sources are chosen by role with others, under virtual time.",
    ),
    "zigzag": LazyCommand(
        "livescale.load.bench.zigzag.command:zigzag", "Compare the schedule of live scaling with the optimum."
    ),
    "requests": LazyCommand(
        "livescale.load.bench.requests.command:requests",
        "Measure what it costs that answers have a form, and whether they have it.",
    ),
    "models": LazyCommand(
        "livescale.load.bench.models.command:models",
        "Compare every architecture with transformers, and experts with a dense model.",
    ),
    "systems": LazyCommand(
        "livescale.load.bench.systems.command:systems", "Compare systems on one trace, in a simulation."
    ),
    "simulate": LazyCommand(
        "livescale.load.scenario.bench.command:simulate", "Measure the CPU time and memory of simulations."
    ),
    "compare": LazyCommand(
        "livescale.load.bench.compare:compare", "Show what two runs of a bench measured, side by side."
    ),
}

MAIN_HELP = """Serve LLMs whose new instances answer before all their parameters have arrived.

\b
First steps:
  livescale make-model /tmp/tiny --family llama --size tiny
  livescale up --model tiny=/tmp/tiny --workers 2 --port 8000
  curl localhost:8000/v1/models
Then, in another terminal:
  livescale status                      show what runs, and which worker serves which model
  livescale scale tiny --instances 2    add an instance by hand
  livescale why tiny                    show every scaling decision and its reason

Each setting of up and run can be given in three ways: as a flag (--log-level), as an environment variable
(LIVESCALE_LOG_LEVEL), or as a key of the YAML file that --config names (log-level). A flag goes before the
environment, and the environment before the file. Other commands show the variables of each option beside it:
the first has the command's name and goes before the second, which other commands may read, too.
"""

BENCH_HELP = """Measure this build on this machine.

Each case is one line of JSON on stdout and one row of a table on stderr. Ratios compare values of the same run.

\b
  livescale bench control
  livescale bench transfer > transfer.jsonl
"""


def make_cli() -> LazyGroup:
    group = LazyGroup("livescale", COMMANDS, MAIN_HELP)
    return click.version_option(version("livescale"), prog_name="livescale")(group)


bench = LazyGroup("bench", BENCHES, BENCH_HELP)
cli = make_cli()


def main() -> None:
    """Run the command line: the entry point of the console script."""
    cli(prog_name="livescale")


if __name__ == "__main__":
    main()
