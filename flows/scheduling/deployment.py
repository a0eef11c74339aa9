"""A schedule as a deployment of Prefect's server: its name, whose it is, and the pool whose workers run it."""

import hashlib
import inspect
import shlex
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from flows.pipeline.server import ServerUnavailable, is_configured, set_environment
from flows.process.locks import Busy, hold_run_lock
from flows.retraining import notify
from flows.scheduling.times import Schedule, prefect_schedules
from tasks.core.errors import UserError
from tasks.core.files import write_text

LOCK = Path(".retemper/serve.lock")  # of a running `retemper schedule`
HOST = Path(".retemper/schedule.host")  # the host name under which this folder was first scheduled
FLOW = "retemper-retraining"
MARK = "retemper-folder:"  # tag of a deployment, with the digest of its folder


def folder_tag(machine: str | None = None) -> str:
    """The tag of deployments of the current folder on this machine, or, with machine "", on any machine."""
    place = f"{first_host() if machine is None else machine}:{Path.cwd()}"
    return f"{MARK}{hashlib.sha256(place.encode()).hexdigest()[:12]}"


def default_name() -> str:
    """FOLDER-DIGEST@HOST, which tells folders of the same name apart."""
    return f"{Path.cwd().name}-{folder_tag().removeprefix(MARK)[:6]}@{first_host()}"


def first_host() -> str:
    """The name of this machine when the folder was first scheduled. A container has another at each start, but keeps its deployment."""
    if not HOST.exists():
        write_text(HOST, socket.gethostname())
    return HOST.read_text(encoding="utf-8").strip()


def refuse_others(name: str, own_tag: str) -> None:
    """Raise UserError if workers run the deployment of that name, or if it belongs to another folder or machine. Needs Prefect's API."""
    deployment = _read(name)
    if deployment and deployment.work_pool_name:
        raise UserError(
            f"{FLOW}/{name}: the workers of pool {deployment.work_pool_name} run this deployment; choose another --name, "
            f"or delete it: prefect deployment delete {shlex.quote(f'{FLOW}/{name}')}"
        )
    if deployment:
        _refuse_other_folder(name, deployment, own_tag)


def _refuse_other_folder(name: str, deployment: Any, *own_tags: str) -> None:
    marks = {tag for tag in deployment.tags if tag.startswith(MARK)}
    if marks and marks.isdisjoint(own_tags):
        raise UserError(f"{FLOW}/{name}: this deployment belongs to another folder or machine; choose another --name")


def _read(name: str) -> Any | None:
    """Prefect's record of the deployment of that name, if there is one."""
    from prefect.client.orchestration import get_client
    from prefect.exceptions import ObjectNotFound

    with get_client(sync_client=True) as client:
        try:
            return client.read_deployment_by_name(f"{FLOW}/{name}")
        except ObjectNotFound:
            return None


def _claim(name: str, stack: ExitStack) -> None:
    """Make sure that the deployment of that name may go to a pool. If it was this folder's own without a pool, `stack` holds the lock of
    `retemper schedule`, so that nothing but the pool runs it.

    Raises UserError if it belongs to another folder or machine, or if `retemper schedule` is running it.
    """
    deployment = _read(name)
    if not deployment:
        return None
    if deployment.work_pool_name:
        return _refuse_other_folder(name, deployment, folder_tag(machine=""))
    _refuse_other_folder(name, deployment, folder_tag(machine=""), folder_tag())
    try:
        stack.enter_context(hold_run_lock(LOCK))
    except Busy:
        raise UserError(f"{FLOW}/{name}: retemper schedule is running in this folder; stop it first") from None


def deploy(schedule: Schedule, pool: str) -> int:
    """Deploy the schedule to a pool, whose workers run it in this folder, one run at a time. Return the exit status."""
    if not is_configured():
        raise UserError("--pool: expected a Prefect server that its workers can reach too; set PREFECT_API_URL")
    set_environment()
    from prefect.client.orchestration import get_client
    from prefect.exceptions import ObjectNotFound

    with get_client(sync_client=True) as client:
        if problem := client.api_healthcheck():
            raise ServerUnavailable(problem)
        try:
            client.read_work_pool(pool)
        except ObjectNotFound:
            raise UserError(f"--pool {pool}: no such work pool; create it: prefect work-pool create --type process {pool}") from None
    notify.check_block()
    with ExitStack() as stack:
        _claim(schedule.name, stack)
        _apply(schedule, pool)
    print(f"{FLOW}/{schedule.name} is deployed to pool {pool}; its workers run it in {Path.cwd()}", flush=True)
    return 0


def _apply(schedule: Schedule, pool: str) -> None:
    from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy

    from flows.scheduling import heartbeats
    from flows.scheduling.flow import scheduled

    deployment = scheduled.to_deployment(
        name=schedule.name,
        schedules=prefect_schedules(schedule),
        parameters={"follow": schedule.follow},
        concurrency_limit=ConcurrencyLimitConfig(limit=1, collision_strategy=ConcurrencyLimitStrategy.CANCEL_NEW),
        work_pool_name=pool,
        tags=[folder_tag(machine="")],
        job_variables={"working_dir": str(Path.cwd()), "env": {heartbeats.FREQUENCY: str(heartbeats.frequency())}},
        entrypoint_type=module_path(),
    )
    assert not inspect.isawaitable(deployment)  # no event loop is running
    deployment.apply()
    heartbeats.watch(folder_tag(machine=""), heartbeats.frequency())


def module_path() -> Any:
    from prefect.types.entrypoint import EntrypointType

    return EntrypointType.MODULE_PATH
