"""Compiles the jar with plain javac against the jars of an installed pyspark: `python jvm-shim/build.py`.

The jar is written to spark_mjoin/jars/, where the wheel takes it and `spark_mjoin.jar_path()` finds it. It carries a
digest of its sources, so it is built again only when they have changed. The same jar serves every Spark version that
is claimed; `make test-matrix` runs it on each.

Without a JDK or without pyspark it builds nothing and says why: the source then works without the jar.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
JAR = HERE.parent / "spark_mjoin" / "jars" / "spark-mjoin.jar"
RELEASE = 17  # the oldest Java that Spark 4 runs on
MANIFEST = "META-INF/MANIFEST.MF"
LINT = "-Xlint:all,-serial,-path,-classfile,-processing"


class CannotBuild(Exception):
    """There is no compiler, or nothing to compile against."""


def sources() -> list[Path]:
    return sorted((HERE / "src").rglob("*.java"))


def stubs() -> list[Path]:
    """Classes that stand in for Spark's own while compiling: javac cannot extend all that Scala's compiler makes."""
    return sorted((HERE / "stubs").rglob("*.java"))


def resources() -> list[Path]:
    return sorted(p for p in (HERE / "resources").rglob("*") if p.is_file())


def digest() -> str:
    """Of all that goes into the jar."""
    hashed = hashlib.sha256()
    for path in (*sources(), *stubs(), *resources(), Path(__file__)):
        hashed.update(path.name.encode() + b"\0" + path.read_bytes())
    return hashed.hexdigest()


def is_fresh() -> bool:
    """Whether the jar is there and was made from these sources."""
    if not JAR.exists():
        return False
    with zipfile.ZipFile(JAR) as jar:
        return digest() in jar.read(MANIFEST).decode().replace("\r\n ", "")


def find_javac() -> str:
    home = os.environ.get("JAVA_HOME")
    candidates = [str(Path(home) / "bin" / "javac")] if home else []
    javac = next((found for c in (*candidates, "javac") if (found := shutil.which(c))), None)
    if javac is None:
        raise CannotBuild(f"there is no javac in JAVA_HOME or on the PATH: install a JDK {RELEASE} or newer")
    said = subprocess.run([javac, "-version"], capture_output=True, text=True, check=True)
    version = re.search(r"javac (\d+)", said.stdout + said.stderr)
    if version is None or int(version[1]) < RELEASE:
        raise CannotBuild(f"{javac} is {(said.stdout + said.stderr).strip()}: install a JDK {RELEASE} or newer")
    return javac


def find_spark_jars() -> Path:
    """The jars of the pyspark of this Python, also from within a build environment of its own; else of SPARK_HOME."""
    places = [Path(p) / "pyspark" / "jars" for p in (*sys.path, *map(sysconfig.get_path, ("purelib", "platlib"))) if p]
    if "SPARK_HOME" in os.environ:
        places.append(Path(os.environ["SPARK_HOME"]) / "jars")
    for place in places:
        if next(place.glob("spark-sql_*.jar"), None) is not None:
            return place
    raise CannotBuild("there is no pyspark to compile against: install pyspark first, or set SPARK_HOME")


def build() -> Path:
    """Compile and pack; raises CannotBuild when the machine lacks something, CalledProcessError on bad sources."""
    javac, jars = find_javac(), find_spark_jars()
    with tempfile.TemporaryDirectory() as directory:
        classes, stubbed = Path(directory) / "classes", Path(directory) / "stubs"
        command = [javac, "--release", str(RELEASE), "-proc:none", LINT, "-Werror"]
        for files, to, path in (
            (stubs(), stubbed, f"{jars}/*"),
            (sources(), classes, f"{stubbed}{os.pathsep}{jars}/*"),
        ):
            subprocess.run([*command, "-cp", path, "-d", str(to), *map(str, files)], check=True)
        JAR.parent.mkdir(exist_ok=True)
        unfinished = JAR.with_suffix(f".{os.getpid()}")
        with zipfile.ZipFile(unfinished, "w") as jar:
            digested = f"Source-Digest: {digest()}"
            manifest = f"Manifest-Version: 1.0\r\n{digested[:70]}\r\n {digested[70:]}\r\n\r\n"
            _add(jar, MANIFEST, manifest.encode())
            for root, files in ((HERE / "resources", resources()), (classes, sorted(classes.rglob("*.class")))):
                for file in files:
                    _add(jar, file.relative_to(root).as_posix(), file.read_bytes())
        unfinished.replace(JAR)
    return JAR


def _add(jar: zipfile.ZipFile, name: str, contents: bytes) -> None:
    jar.writestr(zipfile.ZipInfo(name), contents, zipfile.ZIP_DEFLATED)  # no time of day: the same jar every time


def main() -> int:
    if is_fresh():
        return 0
    try:
        print(f"built {build()}")
    except CannotBuild as e:
        print(f"The jar is not built: {e}. Everything else works without it.", file=sys.stderr)
    except subprocess.CalledProcessError as e:
        return e.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
