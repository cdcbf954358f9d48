"""How the kernels are built, for setuptools: it alone would compile one source after the other."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from setuptools.command.build_ext import build_ext


class BuildSideBySide(build_ext):  # type: ignore[misc]  # setuptools has no types
    """Compiles as many sources at a time as there are cores."""

    def build_extensions(self) -> None:
        """Build all extensions. Raises what a compiler's failure raises, of the first source that it concerns."""
        compile_in_turn = self.compiler.compile

        def compile_side_by_side(sources: Sequence[str], **options: object) -> list[str]:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                # The last ones take longest.
                made = list(pool.map(lambda source: compile_in_turn([source], **options), reversed(sources)))
            return [name for names in reversed(made) for name in names]

        self.compiler.compile = compile_side_by_side
        super().build_extensions()
