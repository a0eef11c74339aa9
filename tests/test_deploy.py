"""What `deploy/` and `make` start: sources exist, versions are pinned, the real command lines understand it. Built where Docker is."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from typer.main import get_command

from flows.cli.main import build
from flows.retraining.notify import BLOCK, WEBHOOK
from tasks.search.server.__main__ import GRACE_SECONDS

ROOT = Path(__file__).resolve().parents[1]
DEPLOY = ROOT / "deploy"
COMPOSE, DOCKERFILE = DEPLOY / "compose.yaml", DEPLOY / "Dockerfile"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
SERVICES: dict[str, dict[str, Any]] = YAML(typ="safe").load(COMPOSE.read_text(encoding="utf-8"))["services"]
SECRETS = {"POSTGRES_PASSWORD": "a", "MINIO_PASSWORD": "b", "RETEMPER_API_KEY": "c"}


def commands() -> list[list[str]]:
    """Every command that a service, a unit, or docs/deploy.md starts and that is ours or Prefect's, from its program's name on."""
    all_commands = [list(service["command"]) for service in SERVICES.values() if "command" in service]
    all_commands = [shlex.split(command[2].partition("exec ")[2]) if command[:2] == ["sh", "-c"] else command for command in all_commands]
    for unit in UNITS:
        (line,) = re.findall(r"^ExecStart=(.*)$", unit.read_text(encoding="utf-8"), re.MULTILINE)
        first, *rest = shlex.split(line)
        assert first.startswith("/srv/project/.venv/bin/")
        all_commands.append([Path(first).name, *rest])
    page = (ROOT / "docs/deploy.md").read_text(encoding="utf-8")
    all_commands += [
        ["retemper", *shlex.split(rest, comments=True)] for rest in re.findall(r"run --rm worker retemper (.*)$", page, re.MULTILINE)
    ]
    return [command for command in all_commands if command[0] in ("retemper", "prefect")]


def test_every_service_is_pinned_and_private() -> None:
    assert {"prefect", "postgres", "worker", "search", "minio"} <= set(SERVICES)
    text = COMPOSE.read_text(encoding="utf-8")
    for name, service in SERVICES.items():
        assert re.search(r":[\w.-]*\d[\w.-]*$", service["image"]) and "latest" not in service["image"], name
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), f"{name}: {port}"
        assert set(service.get("depends_on", {})) <= set(SERVICES), name
        for volume in service.get("volumes", []):
            source = volume.rpartition(":")[0]
            assert source.startswith("${PROJECT:-") or re.search(rf"^  {source}:$", text, re.MULTILINE), f"{name}: {volume}"
        if "build" in service:
            assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).resolve() == DOCKERFILE
    required = set(re.findall(r"\$\{(\w+):\?", text))
    assert required == set(SECRETS), "no secret has a default"
    assert set(re.findall(r"\$\{(\w+)", text)) == required | {"PROJECT", "RUN_AS", "EXTRAS", "RETEMPER_WEBHOOK", "RETEMPER_NOTIFY_BLOCK"}


def test_a_restarted_prefect_server_does_not_wait_for_the_lock_of_a_killed_one(tmp_path: Path) -> None:
    """In every start of the container the server has process id 1, so Prefect takes the lock's owner for alive."""
    lock = tmp_path / "home/concurrency_leases/expirations.lock"
    lock.parent.mkdir(parents=True)
    lock.write_text("1")
    program = tmp_path / "prefect"
    program.write_text('#!/bin/sh\nls "$PREFECT_HOME/concurrency_leases"; echo "$@"\n')
    program.chmod(0o755)
    command = [word.replace("$$", "$") for word in SERVICES["prefect"]["command"]]  # as Compose does
    variables = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "PREFECT_HOME": str(tmp_path / "home")}
    process = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60, check=True)
    assert process.stdout == "server start --host 0.0.0.0\n"


def test_services_of_the_project_have_time_to_stop_and_a_home_that_lasts() -> None:
    services = [service for service in SERVICES.values() if "/project" in service.get("working_dir", "")]
    assert len(services) == 4
    for service in services:
        grace = service["stop_grace_period"].removesuffix("s")
        assert int(grace) > GRACE_SECONDS + 5, "requests are answered, the last lines written"
        home = service["environment"]["HOME"]
        assert f"home:{home}" in service["volumes"], "a user that the image lacks has HOME=/, which it cannot write"
        assert f"install --directory --mode 1777 {home}\n" in DOCKERFILE.read_text(encoding="utf-8")
        assert {WEBHOOK, BLOCK} <= service["environment"].keys(), "or nobody hears of a failed retraining"


def test_git_ignores_the_file_of_secrets(tmp_path: Path) -> None:
    page = (ROOT / "docs/deploy.md").read_text(encoding="utf-8")
    (secrets,) = set(re.findall(r"> (\S+) && chmod 600 \1", page))
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    shutil.copy(ROOT / ".gitignore", tmp_path)
    process = subprocess.run(["git", "check-ignore", "-q", secrets], cwd=tmp_path, check=False)
    assert (secrets, process.returncode) == ("deploy/.env", 0)


def test_make_setup_installs_and_runs_nothing(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    env = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}  # of `make test`
    plans = {
        target: subprocess.run(["make", "-n", target], cwd=tmp_path, capture_output=True, text=True, check=True, env=env).stdout
        for target in ("setup", "run")
    }
    assert "pip --disable-pip-version-check --no-input install -q -c constraints.txt -e '.[cpu,demo]'" in plans["setup"]
    assert "retemper run" not in plans["setup"] and plans["run"] == f"{plans['setup']}.venv/bin/retemper run\n"


def test_what_the_image_is_made_of_is_there() -> None:
    text = re.sub(r"\\\n", " ", DOCKERFILE.read_text(encoding="utf-8"))
    assert re.search(r"^FROM python:3\.\d+\.\d+-slim-\w+$", text, re.MULTILINE)
    assert re.search(r"^USER retemper$", text, re.MULTILINE)
    sources = [source for line in re.findall(r"^COPY (.*)$", text, re.MULTILINE) for source in line.split()[:-1]]
    assert sources and all((ROOT / source).exists() for source in sources), sources
    allowed = {line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line.startswith("!")}
    assert allowed == set(sources), ".dockerignore keeps out what COPY needs, or lets in more"
    (extras,) = re.findall(r"^ARG EXTRAS=(.*)$", text, re.MULTILINE)
    builds = [service["build"] for service in SERVICES.values() if "build" in service]
    assert builds and all(one["args"] == {"EXTRAS": f"${{EXTRAS:-{extras}}}"} for one in builds), "one image, as deploy/.env says"
    extras_section = (ROOT / "pyproject.toml").read_text(encoding="utf-8").partition("[project.optional-dependencies]")[2]
    assert all(re.search(rf"^{extra} = \[", extras_section, re.MULTILINE) for extra in extras.split(","))


@pytest.mark.parametrize("command", [command for command in commands() if command[0] == "retemper"], ids=" ".join)
def test_retemper_understands(command: list[str]) -> None:
    group: Any = get_command(build())
    context, words = None, command[1:]
    while True:
        context = group.make_context(group.name or "retemper", words, parent=context)
        if not hasattr(group, "resolve_command"):
            return
        _, group, words = group.resolve_command(context, [*context._protected_args, *context.args])


@pytest.mark.heavy
@pytest.mark.parametrize("command", [command for command in commands() if command[0] == "prefect"], ids=" ".join)
def test_prefect_understands(command: list[str]) -> None:
    words = [word for word in command[1:4] if not word.startswith("-") and word != "retraining"]
    process = subprocess.run([sys.executable, "-m", "prefect", *words, "--help"], capture_output=True, text=True, timeout=300, check=True)
    for option in (word for word in command if word.startswith("--")):
        assert option in process.stdout, f"{' '.join(words)} {option}"


@pytest.mark.heavy
@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_understands(unit: Path, tmp_path: Path) -> None:
    text = unit.read_text(encoding="utf-8").replace("/srv/project/.venv/bin/", f"{Path(sys.executable).parent}/")
    (tmp_path / unit.name).write_text(text.replace("User=retemper\n", ""))
    process = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / unit.name)], capture_output=True, text=True, timeout=300, check=False
    )
    warnings = [line for line in process.stderr.splitlines() if unit.name in line]
    assert not warnings, warnings


def docker(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["docker", *words], cwd=ROOT, env={**os.environ, **SECRETS}, capture_output=True, text=True, check=False)


@pytest.mark.heavy
@pytest.mark.skipif(not shutil.which("docker") or docker("compose", "version").returncode != 0, reason="no docker compose")
def test_compose_understands() -> None:
    process = docker("compose", "--file", str(COMPOSE), "config", "--quiet")
    assert process.returncode == 0, process.stderr


@pytest.mark.heavy
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not shutil.which("docker") or docker("info").returncode != 0, reason="no Docker daemon")
def test_the_image_is_built_and_starts() -> None:
    process = docker("build", "--file", str(DOCKERFILE), "--tag", "retemper-test", ".")
    assert process.returncode == 0, process.stderr[-3000:]
    assert "retrain" in docker("run", "--rm", "retemper-test").stdout


STUBS = {
    "scontrol": "#!/bin/bash\nprintf 'one\\ntwo\\nthree\\n'\n",
    "srun": '#!/bin/bash\necho srun "$@" >> "$SAID"\nwhile [[ $1 == --* ]]; do shift; done\nexec "$@"\n',
    "ray": '#!/bin/bash\n[[ $1 == status ]] && { [[ -e $SAID.up ]]; exit; }\n[[ $* == *--head* ]] && touch "$SAID.up"\nexec sleep 600\n',
    "python": f'#!/bin/bash\nexec {sys.executable} "$@"\n',
    "retemper": "#!/bin/bash\ntrap 'echo stopped >> \"$SAID\"; exit 143' TERM\n"
    'echo mode "${RAY_AUTH_MODE:-none}" >> "$SAID"\necho retemper "$RAY_ADDRESS" "$@" >> "$SAID"\nsleep "${LASTS:-0}" & wait\nexit 3\n',
}
# In each call of nodes(), one more has joined, up to $JOINING.
RAY_MODULE = """import os
from pathlib import Path

calls, said = [], Path(os.environ["SAID"])


def init(**settings):
    said.open("a").write(f"joining {settings['address']}\\n")


def nodes():
    calls.append(1)
    return [{"Alive": number < min(len(calls), int(os.environ["JOINING"]))} for number in range(3)]
"""


def start_slurm_job(folder: Path, **variables: str) -> "subprocess.Popen[bytes]":
    """The job's script on three nodes, with stand-ins that write what they are asked to `said`."""
    files = {folder / ".venv/bin" / name: text for name, text in STUBS.items()} | {folder / "modules/ray.py": RAY_MODULE}
    for file, text in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(0o755)
    environment = {"SLURM_SUBMIT_DIR": str(folder), "SLURM_JOB_NUM_NODES": "3", "SLURM_JOB_NODELIST": "x", "SLURM_CPUS_PER_TASK": "8"}
    environment |= {"SLURM_GPUS_ON_NODE": "2", "HOME": str(folder), "RAY_AUTH_MODE": "", "SAID": str(folder / "said"), "USER": "u"}
    environment |= {"PYTHONPATH": str(folder / "modules"), "JOINING": "3"}
    command = ["bash", DEPLOY / "slurm/retemper.sbatch", "--set", "a=b"]
    variables = os.environ | environment | variables
    with (folder / "errors").open("wb") as errors:
        return subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True)


@pytest.mark.parametrize("stopped", [False, True])
def test_a_slurm_job_starts_a_cluster_runs_and_ends_with_the_runs_status(stopped: bool, tmp_path: Path) -> None:
    """The job's script with commands that stand in for Slurm's, Ray's, and ours."""
    log = tmp_path / "said"
    if stopped:  # in which case makes no difference
        (tmp_path / ".ray").mkdir()
        (tmp_path / ".ray/auth_token").write_text("made up")
    job = start_slurm_job(tmp_path, LASTS="600" if stopped else "0")
    try:
        if stopped:
            ends = time.monotonic() + 300
            while not (log.exists() and "retemper" in log.read_text()) and time.monotonic() < ends:
                time.sleep(0.05)
            job.terminate()
        assert job.wait(60) == (143 if stopped else 3)
    finally:
        with suppress(ProcessLookupError):  # nothing is left
            os.killpg(job.pid, signal.SIGKILL)
    lines = log.read_text().splitlines()
    assert lines.index("joining one:6379") < lines.index("retemper one:6379 run --set a=b"), "the run begins with all nodes"
    assert ("stopped" in lines) == stopped
    assert "retemper one:6379 run --set a=b" in lines
    assert f"mode {'token' if stopped else 'none'}" in lines, "where there is a token, Ray's head asks for it"
    head, workers = (line for line in lines if line.startswith("srun"))
    assert "--nodelist=one" in head and "ray start --head --node-ip-address=one --port=6379 --num-cpus=8 --num-gpus=2" in head
    assert "--nodes=2" in workers and "--exclude=one" in workers and "ray start --address=one:6379 --num-cpus=8 --num-gpus=2" in workers
    assert all("--cpus-per-task=8 " in line for line in (head, workers)), "srun does not take over the job's since Slurm 22.05"


def test_a_slurm_job_whose_nodes_do_not_all_join_ends_in_one_line(tmp_path: Path) -> None:
    job = start_slurm_job(tmp_path, JOINING="2", RAY_JOIN_SECONDS="1")
    try:
        assert job.wait(60) == 1
    finally:
        with suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
    assert "retemper" not in (tmp_path / "said").read_text()
    assert (tmp_path / "errors").read_text().startswith("2 of the job's 3 nodes joined the Ray cluster within 1 s; ")
