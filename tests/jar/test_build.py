"""The jar is built where there is a JDK, and goes into the wheel; without one the build says so and goes on."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
needs_a_jdk = pytest.mark.skipif(shutil.which("javac") is None, reason="there is no JDK on this machine")
JAVA = sorted((ROOT / "jvm-shim" / "src").rglob("*.java"))
PACKAGED = ("spark_mjoin", "pyspark_mjoin", "jvm-shim", "pyproject.toml", "README.md", "LICENSE")


def checkout(directory: Path) -> Path:
    """What a wheel is built from, without a jar."""
    directory.mkdir()
    for name in PACKAGED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, directory / name, ignore=shutil.ignore_patterns("jars", "__pycache__"))
        else:
            shutil.copy(ROOT / name, directory / name)
    return directory


def build_wheel(source: Path, directory: Path, **environment: str) -> tuple[zipfile.ZipFile, str]:
    """The wheel, and what the build said."""
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)],
        cwd=source, env={**os.environ, **environment}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    (wheel,) = directory.glob("*.whl")
    return zipfile.ZipFile(wheel), done.stdout + done.stderr


@needs_a_jdk
def test_the_wheel_has_the_jar(tmp_path: Path) -> None:
    wheel, _ = build_wheel(checkout(tmp_path / "checkout"), tmp_path / "dist")
    names = wheel.namelist()
    assert "spark_mjoin/jars/spark-mjoin.jar" in names
    assert not [name for name in names if name.endswith(".java")]


def test_without_a_jdk_the_build_says_so_and_goes_on(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    without = {"PATH": str(tmp_path / "bin"), "JAVA_HOME": ""}
    wheel, said = build_wheel(checkout(tmp_path / "checkout"), tmp_path / "dist", **without)
    names = wheel.namelist()
    assert not [name for name in names if name.endswith(".jar")]
    assert "spark_mjoin/__init__.py" in names
    assert "The jar is not built" in said
    assert re.search(r"no javac .* install a JDK 17", said)


@needs_a_jdk
def test_make_jar_without_a_jdk_says_so_and_goes_on(tmp_path: Path) -> None:
    copy = checkout(tmp_path / "checkout")
    command = [sys.executable, str(copy / "jvm-shim" / "build.py")]
    without = {**os.environ, "PATH": str(tmp_path), "JAVA_HOME": ""}
    said = subprocess.run(command, env=without, capture_output=True, text=True, check=True)
    assert "The jar is not built: there is no javac" in said.stderr
    assert not (copy / "spark_mjoin" / "jars").exists()
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "built" in said.stdout
    said = subprocess.run(command, env=without, capture_output=True, text=True, check=True)
    assert said.stdout + said.stderr == "", "a jar that is there is not built again"


@pytest.mark.parametrize("path", JAVA, ids=lambda p: p.name)
def test_java_sources_are_formatted_and_documented(path: Path) -> None:
    text = path.read_text()
    lines = text.splitlines()
    assert text.endswith("\n")
    assert not [n for n, line in enumerate(lines, 1) if len(line) > 120 or line != line.rstrip() or "\t" in line]
    indents = [len(line) - len(line.lstrip()) for line in lines if line.strip() and not line.lstrip().startswith("*")]
    assert not [i for i in indents if i % 2]
    imported = [line for line in lines if line.startswith("import ")]
    assert imported == sorted(imported)
    assert re.search(r"\*/\n(@\w+.*\n)*(public |final |abstract )*(class|record|interface|package) ", text)
