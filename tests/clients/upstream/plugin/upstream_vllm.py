"""What stands in for vLLM in its own tests: a server that runs already, and the tokenizer of its model.

A test that uses anything else of vLLM is skipped, and says what.
"""

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import openai
import pytest
import requests


def stand_in(url: str, model: str, tokenizer: str) -> None:
    """Put everything in place before the tests are imported."""
    Server.url, Server.tokenizer = url, tokenizer
    importlib.import_module("upstream_utils").put_utils(Path.cwd(), RemoteOpenAIServer=Server)
    sys.meta_path.insert(0, Finder())
    for kind, name in (
        (httpx.Client, "build_request"),
        (httpx.AsyncClient, "build_request"),
        (requests.Session, "request"),
    ):
        _rename(kind, name, model)


def _rename(kind: Any, name: str, model: str) -> None:
    """Have bodies of plain HTTP clients ask for our model, too."""
    original = getattr(kind, name)

    def renamed(self: Any, *words: Any, **more: Any) -> Any:
        if isinstance(more.get("json"), dict) and more["json"].get("model"):
            more["json"] = {**more["json"], "model": model}
        return original(self, *words, **more)

    setattr(kind, name, renamed)


class Server:
    """vLLM's RemoteOpenAIServer, whose server runs already: its arguments say nothing."""

    DUMMY_API_KEY = "none"
    url = tokenizer = ""

    def __init__(self, *words: Any, **more: Any) -> None:
        self.url_root = self.url

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *error: object) -> None:
        """The server goes on."""

    def url_for(self, *parts: str) -> str:
        return "/".join([self.url, *parts])

    def get_client(self, **more: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=self.url_for("v1"), api_key="none", max_retries=0, **more)

    def get_async_client(self, **more: Any) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=self.url_for("v1"), api_key="none", max_retries=0, **more)


class Absent:
    """A name of vLLM's that is not here."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *words: Any, **more: Any) -> Any:
        pytest.skip(f"it uses {self._name} of vLLM itself")

    def __getattr__(self, name: str) -> "Absent":
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(f"{self._name}.{name}")


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds any module of vLLM's; all that there is in it is the tokenizer."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.split(".")[0] == "vllm" else None

    def exec_module(self, module: ModuleType) -> None:
        def found(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return _tokenizer if name == "get_tokenizer" else Absent(f"{module.__name__}.{name}")

        module.__getattr__ = found  # type: ignore[method-assign]


def _tokenizer(*words: Any, **more: Any) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(Server.tokenizer)


__all__: Sequence[str] = ("stand_in",)
