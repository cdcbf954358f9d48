"""Run other people's tests of the API against a running system: `python -m tests.clients.upstream openai CHECKOUT URL`.

CHECKOUT is a working copy of openai/openai-python (or of vllm-project/vllm, with `vllm` or `vllm-tools`) that whoever
runs this has fetched. None of it is a part of this project.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from tests.clients.upstream.suites import SUITES

PLUGIN = Path(__file__).with_name("plugin")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.clients.upstream", description=__doc__)
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("url", help="of a running gateway without keys, such as http://127.0.0.1:8000")
    parser.add_argument("--model", default="m", help="the registered model that the tests are to ask")
    parser.add_argument("--tokenizer", default="", help="the directory of its checkpoint, for the tests of vLLM")
    given, more = parser.parse_known_args()
    suite, checkout = SUITES[given.suite], given.checkout.resolve()
    files = [path for path in suite.files if (checkout / path).exists()]
    for path in set(suite.files) - set(files):
        sys.stderr.write(f"not in this checkout: {path}\n")
    if not files:
        parser.error(f"{checkout} has none of the tests of {given.suite}")
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*(str(checkout / path) for path in suite.imports), str(PLUGIN)]),
        "TEST_API_BASE_URL": f"{given.url.rstrip('/')}/v1",
        "UPSTREAM_URL": given.url.rstrip("/"),
        "UPSTREAM_MODEL": given.model,
        "UPSTREAM_TOKENIZER": given.tokenizer,
        "UPSTREAM_EXPECTED": json.dumps(suite.expected),
    }
    options = [
        "-p",
        "upstream_plugin",
        "-p",
        "no:cacheprovider",
        "-q",
        "-rxX",
        "--no-header",
        "-o",
        "addopts=",
        *suite.options,
    ]
    words = [sys.executable, "-m", "pytest", *options, *files, *more]
    return subprocess.run(words, cwd=checkout, env=env, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
