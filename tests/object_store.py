"""A store that speaks S3, on this machine, in a process of its own: moto's server.

    with ObjectStore(tmp_path) as store:
        monkeypatch.setenv(...) for all of store.environment
        ... stateLocation = store.location("state")
        store.count("GET", "rows-")        requests so far, by method and a part of the path

It is not in this process: pyarrow's clients wait for it without letting other threads of Python run.
"""

import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

HOST = "127.0.0.1"
BUCKET = "mjoin-test"


class ObjectStore:
    def __init__(self, root: Path) -> None:
        self._log = root / "object-store.log"
        with socket.socket() as free:
            free.bind((HOST, 0))
            self._port = free.getsockname()[1]
        self.environment = {  # what a user has to set: see docs/cluster.md
            "AWS_ENDPOINT_URL": f"http://{HOST}:{self._port}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",  # nobody asks the machine's network for a role
        }

    def __enter__(self) -> "ObjectStore":
        command = [sys.executable, "-m", "moto.server", "--host", HOST, "--port", str(self._port)]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        with self._log.open("w") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        deadline = time.monotonic() + 60
        while not self._made(BUCKET):
            assert self._process.poll() is None and time.monotonic() < deadline, self._log.read_text()[-3000:]
            time.sleep(0.1)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(30)

    def location(self, path: str) -> str:
        return f"s3://{BUCKET}/{path}"

    def other_bucket(self, name: str) -> str:
        """The location of a bucket that was not there."""
        assert self._made(name)
        return f"s3://{name}"

    def count(self, method: str, part: str) -> int:
        """How many requests there were so far for a path with a part in it."""
        return len(re.findall(rf"{method} [^ ]*{part}[^ ]* HTTP", self._log.read_text()))

    def _made(self, bucket: str) -> bool:
        request = urllib.request.Request(f"http://{HOST}:{self._port}/{bucket}", method="PUT")
        try:
            with urllib.request.urlopen(request, timeout=10):
                return True
        except (urllib.error.URLError, ConnectionError):
            return False
