"""Puts the jar into the wheel: builds it first where that is possible, and says so where it is not."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ShimBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """For a build environment of its own: pyspark to compile against, if it comes to compiling."""
        builder = _builder(self.root)
        if self.target_name != "wheel" or builder.is_fresh():
            return []
        try:
            builder.find_javac()
        except builder.CannotBuild:
            return []
        try:
            builder.find_spark_jars()
        except builder.CannotBuild:
            return [d for d in self.metadata.core.dependencies if d.startswith("pyspark")]
        return []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        builder = _builder(self.root)
        if self.target_name != "wheel" or builder.is_fresh():
            return
        try:
            self.app.display_info(f"built {builder.build()}")
        except builder.CannotBuild as e:
            if builder.JAR.exists():
                builder.JAR.unlink()  # of other sources
            self.app.display_warning(
                f"The jar is not built: {e}. The package works without it; see docs/jar.md for what is missing then."
            )


def _builder(root: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_shim", Path(root) / "jvm-shim" / "build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
