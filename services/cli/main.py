"""`livescale`: the one command line of the project."""

from importlib.metadata import version

import click

from livescale.services.cli.groups import LazyCommand, LazyGroup

# `load` is named by string only: it imports services, services never import it.
COMMANDS = {
    "up": LazyCommand("livescale.services.cli.up:up", "Serve models on this machine until Ctrl-C."),
    "run": LazyCommand("livescale.services.cli.run:run", "Run one service, to spread a system over machines."),
    "demo": LazyCommand("livescale.load.demo.command:demo", "Show a burst scale out live, and check every token."),
    "load": LazyCommand("livescale.load.command:load", "Send an open-loop load to any OpenAI-compatible URL."),
    "chaos": LazyCommand(
        "livescale.load.chaos.command:chaos", "Send a load while processes are killed, and check every token."
    ),
    "make-model": LazyCommand(
        "livescale.load.make_model_command:make_model_command", "Write a random checkpoint to try things with."
    ),
    "profile": LazyCommand(
        "livescale.load.profile.command:profile", "Measure this machine's engine, for modelled ones."
    ),
    "pack": LazyCommand(
        "livescale.services.host.pack_command:pack", "Write the form of a checkpoint that hosts read fastest."
    ),
    "status": LazyCommand("livescale.services.cli.status:status", "Show processes, workers, instances and queues."),
    "scale": LazyCommand("livescale.services.cli.scale:scale", "Set the number of instances of a model."),
    "why": LazyCommand("livescale.services.cli.why:why", "Tell why a model was scaled, or was not."),
    "topology": LazyCommand(
        "livescale.services.cli.topology:topology", "Show and draw a cluster: a file, or this machine."
    ),
    "plan": LazyCommand("livescale.load.plan.command:plan", "Plan who sends parameters to whom, on any cluster."),
    "tap": LazyCommand("livescale.services.cli.tap:tap", "Print the bus traffic, decoded."),
    "bench": LazyCommand(
        "livescale.services.cli.main:bench", "Measure the engine, the control plane, transfers and scaling."
    ),
}
BENCHES = {
    "engine": LazyCommand(
        "livescale.load.bench.engine.command:engine", "The engine on one core, beside transformers, vLLM, llama.cpp."
    ),
    "control": LazyCommand(
        "livescale.load.bench.control.command:control", "Latency that gateway, router and bus add to the engine."
    ),
    "transfer": LazyCommand(
        "livescale.load.bench.transfer.command:transfer", "Parameters over one hop and along chains."
    ),
    "scale": LazyCommand(
        "livescale.load.bench.transfer.scale:scale", "Time from a decision to whole parameters on new workers."
    ),
    "live": LazyCommand(
        "livescale.load.bench.live.command:live",
        "A second instance is added while requests wait: live, and stopped until whole.",
    ),
    "pipeline": LazyCommand(
        "livescale.load.bench.pipeline.command:pipeline",
        "Pipelines of new instances serve before any of them is whole.",
    ),
    "zigzag": LazyCommand(
        "livescale.load.bench.zigzag.command:zigzag", "The schedule of a live scale against the optimum."
    ),
}

MAIN_HELP = """Serve LLMs; scale them out from live workers.

\b
First steps:
  livescale make-model /tmp/tiny --family llama --size tiny
  livescale up --model tiny=/tmp/tiny --workers 2 --port 8000
  curl localhost:8000/v1/models
Then, in another terminal:
  livescale status                      who runs, who serves what
  livescale scale tiny --instances 2    add an instance by hand
  livescale why tiny                    every decision and its reason

Every option has an environment twin (--log-level: LIVESCALE_LOG_LEVEL) and, with --config FILE, a key of the
same name in YAML. A flag counts before the environment, the environment before the file.
"""

BENCH_HELP = """Measure this build on this machine.

One JSON line a case on stdout, a table on stderr; ratios are taken within one run.

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
    """The entry point of the console script."""
    cli(prog_name="livescale")


if __name__ == "__main__":
    main()
