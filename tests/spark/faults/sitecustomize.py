"""Faults at exact places, in every Python process that has this directory on its PYTHONPATH.

`MJOIN_FAULTS` names a JSON file with a list of faults; each happens once, in the first process that gets to its place:

    {"when": "before", "file": "version-0*3[.]json", "what": "worker"}

when    before    a file of the state with a matching name is written
        torn      its temporary file is half written
        unlinked  its temporary file is whole and not published yet
        after     it is published
        deleting  it is about to be removed
what    wait      nothing happens before another attempt has published the file; after PATIENCE an exception is raised
        raise     an exception is raised
        worker    this process is killed
        executor  this process and the executor's JVM are killed
        jvm       this process, Spark's JVM and the driver are killed

The engine has no hooks: this wraps `spark_mjoin.state.directory.Directory` when that is imported. Imports nothing
heavy, since it runs at the start of every Python process.
"""

import importlib.util
import json
import os
import re
import runpy
import signal
import sys
import time

PATIENCE = 60  # seconds


class Finder:
    """Finds the module as everybody else would, and wraps it after it was run."""

    def find_spec(self, name, path=None, target=None):
        if name != "spark_mjoin.state.directory":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module

        def run_and_wrap(module):
            run(module)
            wrap(module.Directory)

        spec.loader.exec_module = run_and_wrap
        return spec


def wrap(directory):
    publish, link, delete = directory.publish, directory.link, directory.delete

    def publish_with_faults(self, name, attempt, write):
        reach("before", name, self)

        def write_half(stream):
            stream.write(b"half")
            stream.flush()
            strike(torn, name, self)

        torn = find("torn", name)
        done = publish(self, name, attempt, write_half if torn else write)
        reach("after", name, self)
        return done

    def link_with_faults(self, temporary, name):
        reach("unlinked", name, self)
        return link(self, temporary, name)

    def delete_with_faults(self, name):
        reach("deleting", name, self)
        return delete(self, name)

    directory.publish, directory.link, directory.delete = publish_with_faults, link_with_faults, delete_with_faults


def reach(when, name, directory):
    fault = find(when, name)
    if fault:
        strike(fault, name, directory)


def find(when, name):
    """A fault for this place that has not happened yet; from now on it has."""
    plan = os.environ["MJOIN_FAULTS"]
    with open(plan) as file:
        faults = json.load(file)
    for number, fault in enumerate(faults):
        if fault["when"] == when and re.match(fault["file"], name):
            try:
                os.close(os.open(f"{plan}.{number}", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            return fault
    return None


def strike(fault, name, directory):
    if fault["what"] == "wait":
        deadline = time.monotonic() + PATIENCE
        while not directory.exists(name):
            if time.monotonic() > deadline:
                raise OSError(f"no other attempt has published {name}")
            time.sleep(0.05)
        return
    if fault["what"] == "raise":
        raise OSError("a fault that the test wants")
    if fault["what"] == "executor":
        import psutil

        next(p for p in psutil.Process().parents() if p.name() == "java").kill()
    if fault["what"] == "jvm":
        import psutil

        parents = psutil.Process().parents()
        for process in [p for p in parents if p.name() == "java"] + [
            p for p in parents if "tests.spark.driver" in p.cmdline()
        ]:
            process.kill()
    os.kill(os.getpid(), signal.SIGKILL)


if "MJOIN_FAULTS" in os.environ:
    sys.meta_path.insert(0, Finder())

runpy.run_path(os.path.join(os.path.dirname(__file__), "../../startup/sitecustomize.py"))  # which this one hides
