"""Nothing secret is shown or stored: a marker is put wherever a secret can be, and looked for wherever one could end.

`LeakyFileSystem` is the worst that a library can be: its paths have the credentials in them, as those of fsspec over
HTTP do, and its errors quote them.
"""

import io
import json
import logging
import os
import pickle
import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote, quote_plus

import fsspec
import pyarrow as pa
import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.spec import AbstractFileSystem
from hypothesis import given
from hypothesis import strategies as st

import spark_mjoin
from spark_mjoin import sources
from spark_mjoin.__main__ import main
from spark_mjoin.doors.worker import secrets_of
from spark_mjoin.driver.loading import load
from spark_mjoin.engine import cache
from spark_mjoin.query.fingerprint import describe, differences
from spark_mjoin.redaction import Secrets, is_secret, public, public_options
from tests.harness import ReadAllAvailable, reader, rows, run
from tests.scripted import SCRIPTS, ScriptedSource

MARK = "Hu5h"  # in every secret here
PASSWORD = f"{MARK}/p%2Fw+d="
QUERY = "SELECT a.k, a.v AS av, b.v AS bv FROM a JOIN b ON a.k = b.k"


class LeakyFileSystem(AbstractFileSystem):
    """Local files under URIs with credentials."""

    protocol = "leaky"
    cachable = False
    root: ClassVar[Path]
    broken: ClassVar[Callable[[str], Exception] | None] = None

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path.rstrip("/")

    def _local(self, path: str) -> str:
        assert f"{MARK}" in path.partition("@")[0], f"the credentials are lost: {path}"
        if LeakyFileSystem.broken is not None:
            raise LeakyFileSystem.broken(path)
        return f"{self.root}/{path.partition('@')[2].partition('/')[2]}".rstrip("/")

    def _info(self, path: str, local: str) -> dict[str, Any]:
        found = LocalFileSystem().info(local)
        return {"name": path, "size": found["size"], "type": found["type"], "mtime": found["mtime"]}

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        return self._info(path, self._local(path))

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        local = self._local(path)
        found = [self._info(f"{path}/{name}", f"{local}/{name}") for name in sorted(os.listdir(local))]
        return found if detail else [each["name"] for each in found]

    def mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        os.makedirs(self._local(path), exist_ok=True)

    def mv(self, path1: str, path2: str, **_: Any) -> None:
        os.rename(self._local(path1), self._local(path2))

    def rm(self, path: str, recursive: bool = False, maxdepth: int | None = None) -> None:
        os.remove(self._local(path))

    def _open(self, path: str, mode: str = "rb", **_: Any) -> Any:
        return LocalFileSystem().open(self._local(path), mode)


class TrustedSource(ScriptedSource):
    """A source with options that are secret."""

    OPTIONS = ("script", "password", "kafka.*", "url", "fails")

    def __init__(self, alias: str, options: sources.Options) -> None:
        super().__init__(alias, options)
        if options.text("fails") == "at load":
            raise options.error("kafka.sasl.jaas.config", f"'{options.text('kafka.sasl.jaas.config')}' is no good")
        self._breaks = options.text("fails") == "when read"
        self._secrets = options.text("password"), options.text("kafka.sasl.jaas.config"), options.text("url")

    def read(self, range: dict, columns: Any) -> Iterator[pa.RecordBatch]:
        if self._breaks:
            try:
                raise ConnectionError(f"401: {self._secrets}")
            except ConnectionError as e:
                raise ValueError(f"rejected: password={self._secrets[0]}") from e
        yield from super().read(range, columns)


@pytest.fixture
def leaky(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    fsspec.register_implementation("leaky", LeakyFileSystem, clobber=True)
    monkeypatch.setitem(sources.REGISTRY, "trusted", "tests.test_secrets:TrustedSource")
    LeakyFileSystem.root, LeakyFileSystem.broken = tmp_path / "files", None
    (tmp_path / "files" / "in").mkdir(parents=True)
    cache.of_worker().clear()
    yield tmp_path / "files"
    LeakyFileSystem.broken = None


def options(**more: str) -> dict[str, str]:
    SCRIPTS["b"] = [pa.table({"k": [1, 2], "v": ["x", "y"]}), pa.table({"k": [2], "v": ["z"]})]
    return {
        "query": QUERY,
        "source.a.format": "csv",
        "source.a.schema": "k BIGINT, v STRING",
        "source.a.path": f"leaky://me:{MARK}%2Fpath@host/in/*.csv",
        "source.a.maxFilesPerTrigger": "1",
        "source.b.format": "trusted",
        "source.b.script": "b",
        "source.b.password": PASSWORD,
        "source.b.kafka.sasl.jaas.config": f'org.Login required username="u" password="{MARK}-jaas";',
        "source.b.kafka.bootstrap.servers": "h:9092",
        "source.b.url": f"jdbc:x://h/db?user=u&token={MARK}-token;Password={MARK}-pair",
        "stateLocation": f"leaky://me:{MARK}-state@host/state",
        **more,
    }


def fill(files: Path, text: str = "1,p\n2,q\n") -> None:
    for number in range(2):
        (files / "in" / f"{number}.csv").write_text(text)
        os.utime(files / "in" / f"{number}.csv", (number + 1, number + 1))


def everything_under(directory: Path) -> str:
    files = [path for path in directory.rglob("*") if path.is_file()]
    return "\n".join(f"{path}\n{path.read_bytes().decode(errors='replace')}" for path in files)


def test_a_query_leaves_no_secret_behind(leaky: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    fill(leaky)
    given = options()
    found = rows(run(given, Path("unused")))
    assert found == {(1, "p", "x"): 2, (2, "q", "y"): 2, (2, "q", "z"): 2}, "the credentials do what they are for"
    current = reader(given)
    start = current.initialOffset()
    end = current.latestOffset(start, ReadAllAvailable())
    partitions = current.partitions(start, end)
    for partition in partitions:
        list(current.read(partition))
    (leaky / "in" / "1.csv").unlink()
    hidden = secrets_of(current.session.spec, given["stateLocation"])
    kept = (leaky / "state").rglob("*")
    said = {
        "state": everything_under(leaky / "state"),
        "names": "\n".join(map(str, kept)),
        "logs": caplog.text,
        "offsets": json.dumps([start, end]),
        "progress": json.dumps(current.reportLatestOffset()),
        "repr": repr([load(given), [p.task for p in partitions], current, hidden]),
        "explain": str(spark_mjoin.explain(given, show=False)),
        "explain with its state": str(spark_mjoin.explain(given, state=given["stateLocation"], show=False)),
        "advise": str(made := spark_mjoin.advise(given, show=False)) + repr(made),
    }
    assert "leaky://host/in/*.csv" in said["state"], "what the state is of can still be seen"
    assert "leaky://host/in/0.csv" in said["state"]
    assert "leaky://host/in/*.csv" in said["explain"]
    assert [where for where, text in said.items() if MARK in text] == []
    assert MARK in pickle.dumps(partitions[0].task).decode(errors="replace"), "executors need them"


OSERROR, FOREIGN = (lambda path: OSError(f"403 for {path}")), (lambda path: KeyError(f"SignatureDoesNotMatch {path}"))
MISTAKES: dict[str, dict[str, str]] = {
    "unknown option": {"source.b.pasword": PASSWORD},
    "no such file system": {"source.a.path": f"nosuch://me:{PASSWORD}@host/in"},
    "no such file system, with a slash": {"source.a.path": f"nosuch://me:a/{MARK}/c@host/in"},
    "no such file system, with quotes": {"source.a.path": f"nosuch://me:a'{MARK}\"c@host/in"},
    "no such place": {"source.a.path": f"leaky://me:{MARK}@host/nowhere"},
    "a bad pattern": {"source.a.path": f"leaky://me:{MARK}@host/in[1"},
    "signed": {"source.a.path": f"leaky://me:{MARK}@host/in[1?X-Sig={MARK}&sig={MARK}"},
    "a bad bucket": {"source.a.path": f"s3://key:{MARK}@@/in"},
    "a bad value": {"source.b.fails": "at load"},
    "fails when read": {"source.b.fails": "when read"},
    "a bad place for the state": {"stateLocation": f"nosuch://me:{MARK}@host/in"},
    "a path in the wrong place": {"path": f"leaky://me:{MARK}@host/in"},
    "a bad window": {"window": "a day", "source.b.password": PASSWORD},
    "a bad flag": {"source.a.header": f"https://u:{MARK}@h/x"},
    "a bad number": {"partitions": f"password={MARK}"},
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_no_error_of_the_options_shows_a_secret(leaky: Path, caplog: pytest.LogCaptureFixture, mistake: str) -> None:
    fill(leaky)
    given = options(**MISTAKES[mistake])
    errors = {name: error_of(lambda act=act: act(given)) for name, act in ACTS.items()}
    assert errors["run"], "there is something wrong"
    assert [name for name, text in errors.items() if text and MARK in text] == [], errors
    assert MARK not in caplog.text


@pytest.mark.parametrize("kind", [OSERROR, FOREIGN], ids=["OSError", "an error of another library"])
@pytest.mark.parametrize("moment", ["load", "latestOffset", "partitions", "read", "metrics", "explain", "advise"])
def test_no_error_of_a_file_system_shows_a_secret(
    leaky: Path, caplog: pytest.LogCaptureFixture, kind: Callable[[str], Exception], moment: str
) -> None:
    fill(leaky)
    given = options(**{"source.a.path": f"leaky://me:{MARK}%2Fpath@host/in"})
    current = reader(given)
    start = current.initialOffset()
    end = current.latestOffset(start, ReadAllAvailable())
    partitions, again = current.partitions(start, end), reader(given)
    LeakyFileSystem.broken = kind
    act = {
        "load": lambda: reader(given),
        "latestOffset": lambda: again.latestOffset(start, ReadAllAvailable()),
        "partitions": lambda: again.partitions(start, end),
        "read": lambda: [list(current.read(p)) for p in partitions],
        "metrics": current.reportLatestOffset,
        "explain": lambda: spark_mjoin.explain(given, state=given["stateLocation"], show=False),
        "advise": lambda: spark_mjoin.advise(given, show=False),
    }[moment]
    said = error_of(act)
    # fsspec takes some errors for a file that is not there.
    assert any(part in said for part in ("403", "SignatureDoesNotMatch", "that is not there")), said
    assert MARK not in said + caplog.text, said


def test_no_error_of_the_data_shows_a_secret(leaky: Path, caplog: pytest.LogCaptureFixture) -> None:
    fill(leaky, "x,1,2\n")
    said = error_of(lambda: run(options(), Path("unused")))
    assert "leaky://host/in/0.csv" in said
    assert MARK not in said + caplog.text, said
    fill(leaky)
    for name in ("meaning.json", "version-*", "entries-*"):
        for path in (leaky / "state").rglob(name):
            path.write_text("damaged")
    said = error_of(lambda: spark_mjoin.explain(options(), state=options()["stateLocation"], show=False))
    assert MARK not in said + caplog.text, said


def run_and_read(given: dict[str, str]) -> None:
    run(given, Path("unused"))


def on_the_command_line(given: dict[str, str]) -> None:
    """What a command prints, as an error."""
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        code = main(["advise", *(part for n, v in given.items() for part in ("-o", f"{n}={v}"))])
    raise RuntimeError(f"{code}: {said.getvalue()}")


ACTS: dict[str, Callable[[dict[str, str]], Any]] = {
    "run": run_and_read,
    "explain": lambda given: spark_mjoin.explain(given, show=False),
    "advise": lambda given: spark_mjoin.advise(given, show=False),
    "command": on_the_command_line,
}


def error_of(act: Callable[[], Any]) -> str:
    """What Spark and a terminal show of an error: the traceback with all causes, without the lines of this file."""
    try:
        act()
    except Exception as e:  # noqa: BLE001 - whatever it is
        shown = "".join(traceback.format_exception(e))
        return re.sub(r'  File "[^"]*test_secrets.py".*\n(    .*\n)*', "", shown)
    return ""


# --- the state goes on when a password changes, and not when another source is given -----------------------------


@pytest.mark.parametrize(
    ("change", "refused"),
    [
        ({"source.b.password": "another"}, False),
        ({"source.b.kafka.sasl.jaas.config": "another"}, False),
        ({"source.a.path": f"leaky://you:{MARK}-other@host/in/*.csv"}, False),
        ({"source.a.path": "leaky://host/in/*.csv"}, False),
        ({"source.a.path": f"leaky://me:{MARK}%2Fpath@other/in/*.csv"}, True),
        ({"source.a.path": f"leaky://me:{MARK}%2Fpath@host/out/*.csv"}, True),
        ({"source.b.script": "c"}, True),
    ],
)
def test_secrets_are_no_part_of_the_meaning(leaky: Path, change: dict[str, str], refused: bool) -> None:
    SCRIPTS["c"] = [pa.table({"k": [1], "v": ["x"]})]
    fill(leaky)
    before, after = (describe(load(given)[0]) for given in (options(), options(**change)))
    assert bool(differences(before, after)) == refused
    assert MARK not in json.dumps([before, after])


# --- the module itself -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://AK:se/cr+et@bucket/in?x=1", "s3://bucket/in"),
        ("cannot open 's3a://k:s@b/x', error 5", "cannot open 's3a://b/x', error 5"),
        ("s3://k:s@b/in-?.parquet", "s3://b/in-?.parquet"),
        ("https://u:p@ss@host/x?sig=a&b=c and more", "https://host/x and more"),
        ("hdfs://nn:8020/user@x/a", "hdfs://nn:8020/user@x/a"),
        ("abfss://container@account.dfs.core.windows.net/x", "abfss://container@account.dfs.core.windows.net/x"),
        ("in/key=1/token=2/*.parquet", "in/key=1/token=2/*.parquet"),
        ("token STRING, secret STRUCT<password: STRING>", "token STRING, secret STRUCT<password: STRING>"),
        ("user=u;password=p;x=1", "user=u;password=***;x=1"),
        ("{'token': 'abc'}", "{'token': ***}"),
        ("/data/in@home/a?b=c", "/data/in@home/a?b=c"),
    ],
)
def test_what_is_public(text: str, shown: str) -> None:
    assert public(text) == shown


def test_names_that_say_so() -> None:
    secret = "password PASSWD kafka.ssl.keystore.password fs.s3a.secret.key fs.s3a.access.key accessKey api_key sas sig"
    secret += " token sessionToken kafka.sasl.jaas.config account.key credentials client-secret sslKeyPassphrase auth"
    assert [name for name in secret.split() if not is_secret(name)] == []
    open = "path schema header sep key.deserializer script cardinality failOnDataLoss keyColumn nullValue author"
    assert [name for name in open.split() if is_secret(name)] == []


AWKWARD = ["\\", "'\"", "'", "\t", "%2f%2F", "+/= ", "ü", "\x00"]


@pytest.mark.parametrize("awkward", AWKWARD)
@pytest.mark.parametrize("where", ["option", "uri", "encoded uri"])
def test_a_secret_is_hidden_as_errors_quote_it(awkward: str, where: str) -> None:
    """With `repr`, as an OSError does with a file's name and a KeyError with its key; in JSON; and in parts of URIs."""
    secret = f"{MARK}{awkward}{MARK}"
    encoded = quote(secret, safe="")
    value = {"option": secret, "uri": f"s3://k:{secret}@b/in", "encoded uri": f"s3://k:{encoded}@b/in"}[where]
    secrets = Secrets.of([("path" if "uri" in where else "password", value)])
    texts = [form(text) for form in (str, repr, ascii, json.dumps) for text in (secret, f"it's {secret}", value)]
    texts += [quote(secret), encoded, re.sub("%..", lambda code: code[0].lower(), encoded), quote_plus(secret)]
    assert [text for text in texts if MARK in secrets.hide(text)] == []
    inner = OSError("denied")
    inner.__cause__ = KeyError(secret)
    grouped = ExceptionGroup("two", [KeyError("another"), inner])
    for error in (KeyError(secret), OSError(2, "is not there", value), grouped):
        assert MARK not in error_of(lambda error=error: raised(secrets, error))


def raised(secrets: Secrets, error: Exception) -> None:
    with secrets.kept():
        raise error


@given(st.text(st.characters(codec="utf-8", exclude_characters="@"), min_size=4, max_size=30))
def test_any_secret_is_hidden_wherever_it_is_quoted(secret: str) -> None:
    secret = f"{secret}{MARK}{secret}"
    for given_as in ({"path": f"s3://key:{secret}@bucket/in"}, {"password": secret}, {"jaas": f'x y="{secret}"'}):
        stored = json.dumps(public_options(given_as.items()))
        assert MARK not in stored
        value = next(iter(given_as.values()))
        texts = [f"cannot open {value}", f"'{value}'", f"denied: {secret}" if "jaas" not in given_as else "", value]
        for text in texts:
            assert MARK not in Secrets.of(given_as.items()).hide(text), text
