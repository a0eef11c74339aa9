"""Two clones over one remote: who has not computed anything runs nothing. Prints seconds; ends with an error where a stage ran.

    python benchmarks/sharing.py --data beir:FOLDER --encoder package:MODULE/FOLDER [--s3 MOTO_SERVER]
    python benchmarks/sharing.py --records 10000

`--s3` repeats it over an S3 server of this machine: the path of moto's `moto_server`, from an environment of its own (its
botocore and dvc-s3's conflict); this environment then needs `pip install 'dvc[s3]'`.

`--records N` measures what start and push ask of a remote with N recorded runs and N records of how they were made, beside one with 10.
"""

import argparse
import hashlib
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KEYS = {"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local", "AWS_DEFAULT_REGION": "us-east-1"}


def call(folder: Path, *command: str) -> str:
    """Output of a command in a clone; its errors end the benchmark."""
    home = folder.parent / "home"
    home.mkdir(exist_ok=True)
    inherited = {
        name: value for name, value in os.environ.items() if name == "PREFECT_API_URL" or not name.startswith(("PREFECT", "GIT", "DVC"))
    }
    settings = {
        "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]),
        "DVC_GLOBAL_CONFIG_DIR": str(home),
        "DVC_NO_ANALYTICS": "1",
        **KEYS,
    }
    identity = {f"GIT_{role}_{field}": "bench@localhost" for role in ("AUTHOR", "COMMITTER") for field in ("NAME", "EMAIL")}
    process = subprocess.run(list(command), cwd=folder, env=inherited | settings | identity, capture_output=True, text=True, check=False)
    if process.returncode:
        sys.exit(f"{' '.join(command)}: status {process.returncode}\n{process.stdout[-3000:]}\n{process.stderr[-3000:]}")
    if "warning" in process.stderr:
        print(process.stderr.strip())
    return process.stdout


def run(folder: Path, *settings: str) -> tuple[int, str]:
    """`retemper run`: stages executed, and seconds (of the clock, of all cores)."""
    start, usage_before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    output = call(folder, sys.executable, "-m", "flows.cli", "run", *(part for setting in settings for part in ("--set", setting)))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - usage_before.ru_utime - usage_before.ru_stime
    return int(re.findall(r"^executed (\d+)", output, re.MULTILINE)[-1]), f"{time.monotonic() - start:.1f} s ({cpu:.1f} s of CPU)"


def retemper(folder: Path, *arguments: str) -> None:
    call(folder, sys.executable, "-m", "flows.cli", *arguments)


def clone(origin: Path, folder: Path) -> Path:
    call(folder.parent, "git", "clone", "--quiet", str(origin), str(folder))
    return folder


@contextmanager
def s3_server(program: str) -> Iterator[str]:
    """moto's server on 127.0.0.1 with one bucket; yields its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen([program, "-H", "127.0.0.1", "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(url, timeout=5).close()
                break
            except OSError:
                time.sleep(0.1)
        urllib.request.urlopen(urllib.request.Request(f"{url}/bucket", method="PUT"), timeout=30).close()
        yield url
    finally:
        server.kill()
        server.wait()


def share(first: Path, name: str, url: str, *options: str) -> None:
    """`first`, which has computed everything, shares; a new clone runs nothing; what that one changes, `first` gets."""
    retemper(first, "remote", "add", name, url, *(part for option in options for part in ("--option", option)))
    call(first, "git", "add", "-A")
    call(first, "git", "commit", "--quiet", "-m", f"Remote {name}, and what was computed")
    executed, seconds = run(first)
    print(f"{name}: first push: executed {executed}, {seconds}", flush=True)
    second = clone(first, first.parent / name)
    executed, seconds = run(second)
    print(f"{name}: a fresh clone: executed {executed}, {seconds}", flush=True)
    assert executed == 0
    changed = f"index.seed={7 if name == 'folder' else 8}"
    executed, seconds = run(second, changed)
    print(f"{name}: it changes {changed}: executed {executed}, {seconds}", flush=True)
    executed, seconds = run(first, changed)
    print(f"{name}: the first takes it over: executed {executed}, {seconds}", flush=True)
    assert executed == 0
    retemper(first, "remote", "remove", name)


def records(folder: Path, count: int) -> dict[str, float]:
    """Seconds of what a run asks of a remote with `count` records: a fresh clone, then nothing new, then one that has them all to send."""
    digests = [hashlib.sha256(str(number).encode()).hexdigest() for number in range(count)]
    project, remote = folder / f"project{count}", folder / f"remote{count}"
    for place in (project, remote):
        place.mkdir()
    (remote / "retemper.json").write_text("{}")
    for digest in digests:
        run, record = remote / "runs" / digest[:2] / digest / digest[::-1], remote / "made" / digest[:2] / f"{digest}.json"
        for file, text in ((run, "cmd: x\nouts: []\n"), (record, "{}")):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
    dvc = [sys.executable, "-m", "dvc"]
    call(project, "git", "init", "--quiet")
    call(project, *dvc, "init", "--quiet")
    call(project, *dvc, "remote", "add", "--quiet", "--default", "team", str(remote))

    def seconds(command: str) -> float:
        start = time.monotonic()
        call(project, sys.executable, "-m", "flows.storage.dvc", command)
        return time.monotonic() - start

    durations = {"start, fresh clone": seconds("records"), "start": seconds("records"), "push": seconds("push")}
    shutil.copytree(remote / "runs", project / ".dvc/cache/runs")
    shutil.copytree(remote / "made", project / ".dvc/cache/made")
    for name in ("runs", "made"):
        shutil.rmtree(remote / name)
    return durations | {"first push": seconds("push")}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--data")
    arguments.add_argument("--encoder")
    arguments.add_argument("--records", type=int, metavar="N")
    arguments.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="more parameters of the first run")
    arguments.add_argument("--s3", metavar="MOTO_SERVER")
    options = arguments.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="sharing-"))
    try:
        if options.records:
            base, full = records(folder, 10), records(folder, options.records)
            for name, seconds in full.items():
                print(f"{name}: {base[name]:.1f} s with 10 records, {seconds:.1f} s with {options.records:,}")
            return
        if not (options.data and options.encoder):
            arguments.error("expected --data and --encoder, or --records")
        first = clone(ROOT, folder / "first")
        executed, seconds = run(first, f"dataset.source={options.data}", f"encoder.source={options.encoder}", *options.set)
        print(f"first run: executed {executed}, {seconds}", flush=True)
        share(first, "folder", str(folder / "remote"))
        with s3_server(options.s3) if options.s3 else nullcontext(None) as url:
            if url:
                share(first, "s3", "s3://bucket/cache", f"endpointurl={url}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
