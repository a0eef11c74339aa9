"""Deployments: whose they are, and moves to a pool."""

from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from flows.process.locks import Busy, hold_run_lock
from flows.scheduling import deployment
from tasks.core.errors import UserError


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SimpleNamespace:
    """The server's record of a deployment that `retemper schedule` has made in the current folder."""
    monkeypatch.chdir(tmp_path)
    record = SimpleNamespace(work_pool_name=None, tags=[deployment.folder_tag()])
    client = SimpleNamespace(read_deployment_by_name=lambda _: record)
    monkeypatch.setattr("prefect.client.orchestration.get_client", lambda **_: nullcontext(client))
    return record


def test_names_tell_folders_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    names = []
    for place in ("one/toy", "two/toy"):
        (tmp_path / place).mkdir(parents=True)
        monkeypatch.chdir(tmp_path / place)
        names.append(deployment.default_name())
    assert len(set(names)) == 2
    assert all(name.startswith("toy-") for name in names)


def test_deployments_of_other_folders_and_of_pools(record: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    deployment.refuse_others("n", deployment.folder_tag())
    record.work_pool_name, record.tags = "gpus", [deployment.folder_tag(machine="")]
    with pytest.raises(UserError, match=r"the workers of pool gpus run this deployment.* delete 'retemper-retraining/my team'$"):
        deployment.refuse_others("my team", deployment.folder_tag())
    with ExitStack() as stack:
        deployment._claim("n", stack)
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    for pool in ("gpus", None):
        record.work_pool_name = pool
        with pytest.raises(UserError, match="retemper-retraining/n: this deployment belongs to another folder"), ExitStack() as stack:
            deployment._claim("n", stack)
    with pytest.raises(UserError, match="retemper-retraining/n: this deployment belongs to another folder"):
        deployment.refuse_others("n", deployment.folder_tag())


@pytest.mark.usefixtures("record")
def test_a_deployment_without_a_pool_moves_to_one_unless_it_is_running() -> None:
    """It was refused as another folder's, since a pool's tag names no machine."""
    with ExitStack() as stack:
        deployment._claim("n", stack)
        with pytest.raises(Busy), hold_run_lock(deployment.LOCK):
            pass
    with hold_run_lock(deployment.LOCK), ExitStack() as stack, pytest.raises(UserError) as refused:
        deployment._claim("n", stack)
    assert str(refused.value) == "retemper-retraining/n: retemper schedule is running in this folder; stop it first"


def test_a_machine_with_a_new_name_keeps_its_deployment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A container has another host name at each start."""
    monkeypatch.chdir(tmp_path)
    seen = []
    for host in ("first", "second"):
        monkeypatch.setattr("socket.gethostname", lambda host=host: host)
        seen.append((deployment.default_name(), deployment.folder_tag()))
    assert seen[0] == seen[1] and seen[0][0].endswith("@first")
