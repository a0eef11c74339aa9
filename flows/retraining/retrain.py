"""One retraining from beginning to end: new data, the pipeline, the comparison, the champion, the record of it all.

It works in a git worktree of its own (`flows.retraining.tree`), one at a time, and never raises for what goes wrong in it: how it
ended is returned, recorded in `.retemper/retrainings.jsonl`, and reported. Whatever happens, the champion stays as it was or
is a new one that was shown to be no worse; nothing in between is visible.
"""

import contextlib
import json
import os
import shutil
import sys
import time
import traceback
import uuid
from asyncio import CancelledError
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from flows.experiments.evaluate import run_stages
from flows.parameters import edit
from flows.parameters.sources import source_keys
from flows.pipeline import run, server
from flows.pipeline.plan import check_parameters
from flows.process import locks
from flows.process.display import Display
from flows.process.problems import Problems, tell
from flows.process.processes import Processes, environment, stopping_on_signals
from flows.repository.git import GitFailed, git
from flows.repository.lock import read_lock
from flows.results import metrics
from flows.retraining import champion, history, intake, notify, promotion
from flows.retraining import tree as retraining_tree
from flows.retraining.champion import Champion
from flows.retraining.history import Ended, Result
from tasks.core.stage.errors import Problem, UserError, one_line_errors, printable
from tasks.core.stage.files import write_json
from tasks.core.stage.frozen import freeze_parameters
from tasks.core.stage.params import read_yaml

LOCK = Path(".retemper/retraining.lock")
SCRATCH = Path(".retemper/champion")
WAIT_SECONDS = 600.0  # for a gc that holds the worktree

T = TypeVar("T")


class NotComparable(UserError):
    """The champion cannot be measured as it is served."""


def retrain(project: Path, follow: str = "HEAD", check: Callable[[], None] = check_parameters, *, dated: bool = False) -> Ended:
    """Retrain `project` at its commit `follow`; returns how that ended. UserError if another retraining is in progress, or none can begin.

    `dated`: its last line begins with the time, for a log. A stop (SIGTERM, SIGINT) is remembered and raised as KeyboardInterrupt.
    """
    display = Display()
    with locks.only_run(project / LOCK):
        history.remember_killed(project)
        begun = Ended(uuid.uuid4().hex[:12], "killed", "killed half-way; the next run resumed", champion.timestamp())
        processes = Processes()
        try:
            with stopping_on_signals(processes):
                write_json(project / history.AT_WORK, asdict(begun))
                with _inside(retraining_tree.prepare(project, follow, display.warn)) as tree:
                    ended = _work(project, tree, begun, check, processes, display)
        except KeyboardInterrupt:
            history.remember(project, replace(begun, result="stopped", reason="stopped; the next run resumes"), display.warn)
            raise
        except run.StagesFailed as failed:
            ended = replace(begun, result="failed", reason=str(failed))
        except (UserError, OSError) as error:
            ended = replace(begun, result="failed", reason=" ".join(str(error).split()))
        except (Exception, CancelledError) as error:  # the champion stays, and the reason is reported: no failure may go unnoticed
            traceback.print_exc()
            lost = "Prefect's server no longer knows this run" if isinstance(error, CancelledError) else error
            ended = replace(begun, result="failed", reason=f"{type(error).__name__}: {' '.join(str(lost).split())[:300]}")
        if ended.result == "failed":
            ended = replace(ended, champion=_number(project))
        ended = replace(ended, reason=printable(ended.reason))
        history.remember(project, ended, display.warn)
        if problem := retraining_tree.push(project):
            display.warn(problem)
    display.line(f"{champion.timestamp()} {ended.line}" if dated else f"\n{ended.line}")
    if ended.result != "unchanged":
        facts = {"champion": ended.champion, "candidate": ended.candidate, "commit": ended.commit}
        notify.notify(ended.result, f"{project.name}: {ended.line}", display.warn, **facts)
    return ended


def _work(
    project: Path, tree: retraining_tree.Tree, begun: Ended, check: Callable[[], None], processes: Processes, display: Display
) -> Ended:
    """Everything between the worktree and the champion; the current folder is the worktree's."""
    rules = promotion.read_retraining()
    _take_in(rules.intake, project)
    sections = read_yaml(Path("params.yaml"))
    measure = promotion.measure_of(rules.promotion, sections)
    _run_pipeline(check, processes, display)

    found = {name: dict(splits) for name, splits in metrics.read_metrics().items()}
    model = metrics.best_model(found, measure, sections)
    champions = champion.read_champions(project)
    now = champions[-1] if champions else None
    new = Champion(
        number=(now.number if now else 0) + 1,
        model=model,
        cause="promoted" if now else "first",
        when=champion.timestamp(),
        measure=measure,
        metrics=found[model],
        replaced=now.number if now else None,
        previous=now.number if now else None,
    )
    digests = champion.digests_of(champion.outs_of(read_lock()), model)
    begun = replace(begun, candidate=model, champion=now.number if now else None, metrics=found)
    if now and digests == now.digests:
        return replace(begun, result="unchanged", reason=f"{model} is champion/{now.number} itself: nothing that it depends on has changed")
    if now and (last := _nothing_new(tree, now.number)):
        return replace(begun, result="unchanged", reason=f"nothing new since {last.when}: {last.reason}")
    reason, promoted = f"{model} is the first champion", True
    if now and (old := champion.taken_back(champions, digests)):
        reason, promoted = f"{model} is champion/{old.number}, which was taken back by hand; champion/{now.number} stays", False
    elif now and digests.get("encoder") == now.digests.get("encoder"):
        reason = f"{model} is champion/{now.number}, its corpus or index is new"
        new = replace(new, cause="data")
    elif now:
        try:
            measured = _again(partial(evaluate_champion, project, now, digests.get("corpus", ""), processes, display))
            found[f"champion/{now.number}"] = measured
            ours = values(Path("data/values") / model, measure, found[model])
            verdict = promotion.judge(ours, values(SCRATCH / "values", measure, measured), measure, rules.promotion)
            new = replace(new, comparison=asdict(verdict))
            reason, promoted = f"{model} against champion/{now.number}: {verdict.reason}", verdict.promoted
        except NotComparable as error:
            reason, promoted = f"{model} against {error}", False
        finally:
            shutil.rmtree(SCRATCH, ignore_errors=True)
    reason = printable(reason)
    result: Result = "promoted" if promoted else "refused"
    ended = replace(begun, result=result, reason=reason, champion=new.number if promoted else begun.champion)
    write_json(Path(retraining_tree.RECORD), asdict(ended))
    commit = retraining_tree.commit(tree, f"Retraining {ended.id}: {model} {result}\n\n{reason}\n")
    if promoted:
        new = replace(new, commit=commit, **champion.record_of(tree.folder, commit, model))
        champion.crown(tree.root, new, (commit, tree.tip))
    else:
        retraining_tree.move(tree.root, [f"update {retraining_tree.BRANCH} {commit} {tree.tip or retraining_tree.ZERO}"])
    with contextlib.suppress(GitFailed):  # all is done; the next run checks out again
        git("checkout", "--quiet", "--force", "--detach", commit, folder=tree.root)
    return replace(ended, commit=commit)


def _nothing_new(tree: retraining_tree.Tree, champion_now: int) -> Ended | None:
    """The last retraining, where it met the present champion with the very same artifacts and rules: it would end the same again."""
    if tree.tip is None:
        return None
    last = history.recorded(tree.folder, tree.tip)
    if (
        last is None
        or last.champion != champion_now
        or champion.outs_of(champion.locked(tree.folder, tree.tip)) != champion.outs_of(read_lock())
    ):
        return None
    before = champion.show(tree.folder, tree.tip, str(promotion.FILE))
    rules = promotion.FILE.read_text(encoding="utf-8").strip() if promotion.FILE.exists() else None
    return last if (before.strip() if before is not None else None) == rules else None


def _take_in(rule: promotion.Intake, project: Path) -> None:
    """Let params.yaml of the worktree name the data to train on, and what lies relative to the project by its whole path."""
    sections = read_yaml(Path("params.yaml"))
    edits = []
    for key, name in source_keys(sections):
        if key == "dataset.source":
            place = intake.take_in(rule, name, project)
        elif key == "articles.source":
            place = intake.absolute(name, project)
        else:  # an encoder: a Hugging Face id, package:MODULE/FOLDER, or a folder
            folder = project / Path(name).expanduser()
            place = str(folder.resolve()) if not name.startswith("package:") and folder.is_dir() else name
        if place != name:
            edits.append(f"{key}={json.dumps(place)}")
    edit.apply(edits, Path("params.yaml"), lambda _: None)


def _run_pipeline(check: Callable[[], None], processes: Processes, display: Display) -> None:
    """`flows.pipeline.run.run`. If Prefect's server becomes unavailable meanwhile, a process that needs none does the rest.

    A server that restarted, or was unavailable for minutes, no longer knows the lease that a scheduled run holds of its deployment's
    limit; Prefect then raises its CancelledError in this thread.
    """
    _wait_for(locks.RUN_LOCK)
    try:
        run.run(check=check, quiet=True, with_dev=True)
    except (Exception, CancelledError) as error:
        if isinstance(error, UserError | OSError | run.StagesFailed) and not isinstance(error, server.ServerUnavailable):
            raise
        if not server.is_configured():
            raise
        problem = str(error) if isinstance(error, server.ServerUnavailable) else f"Prefect ended the run ({type(error).__name__})"
        display.warn(f"{problem}; going on without its server")
        env = environment(PREFECT_HOME=str(server.HOME.absolute()))
        for name in ("PREFECT_API_URL", "RETEMPER_DEVICE_LIMIT"):  # the limit is that server's
            env.pop(name, None)
        reported = Problems(server.HOME.parent / "pipeline.problem.json")
        command = [sys.executable, "-m", "flows.retraining.retrain"]
        try:
            status = _again(lambda: processes.run(command, display.line, {**env, **reported.environment}))
        finally:
            problems = reported.take()
        if status:
            raise run.StagesFailed(problems or [Problem("pipeline", f"the pipeline ended with status {status}", status)], status) from None


def _again(work: Callable[[], T]) -> T:
    """`work`, once more where Prefect raises its CancelledError in it, which it does once for a lease; finished pieces are kept."""
    try:
        return work()
    except CancelledError:
        return work()


def _wait_for(lock: Path) -> None:
    """Wait until the worktree is free (a gc holds it while it looks), at most WAIT_SECONDS; UserError then."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            with locks.only_run(lock):
                return
        except UserError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.5)


def evaluate_champion(project: Path, now: Champion, corpus: str, processes: Processes, display: Display) -> dict[str, Any]:
    """Metrics of the champion on the new corpus and queries; values by query are in SCRATCH/values afterwards.

    It is encoded with its own text and token settings, as it is served; how deep it is searched and what is measured are as now.
    Its shards come from the shard store where documents have not changed. A compressed index that it was trained with is searched
    as it is served, over the corpus that it is of. UserError where its encoder is nowhere any more; NotComparable where it has such
    an index, and the present `corpus` (digest) is another.
    """
    shutil.rmtree(SCRATCH, ignore_errors=True)
    SCRATCH.mkdir(parents=True)
    champion.get_out(project, now.commit, f"data/encoders/{now.model}", SCRATCH / "encoder")
    own = champion.show(Path.cwd(), now.commit, "params.yaml") or ""
    (SCRATCH / "params.yaml").write_text(own, encoding="utf-8")
    searched = []
    if now.model in (read_yaml(SCRATCH / "params.yaml").get("adore") or {}):
        champion.get_out(project, now.commit, f"data/indexes/{now.model}", SCRATCH / "index")
        if (SCRATCH / "index/index.faiss").exists():
            if corpus != now.digests.get("corpus"):
                raise NotComparable(
                    f"champion/{now.number}: it was trained with an index of its own, which is of another corpus, so the two cannot be "
                    f"compared; the champion stays (to have the new one: retemper champion set MODEL)"
                )
            searched = ["--index", "index"]
    sections = read_yaml(Path("params.yaml"))
    present = [f"{section}={json.dumps(sections[section])}" for section in ("retrieve", "evaluate") if section in sections]
    edit.apply(present, SCRATCH / "params.yaml", lambda _: None)
    freeze_parameters(SCRATCH)
    (SCRATCH / ".retemper").symlink_to(Path(".retemper").resolve())
    if Path("runtime.yaml").exists():
        (SCRATCH / "runtime.yaml").symlink_to(Path("runtime.yaml").resolve())
    name, data = f"champion/{now.number}", Path("data").resolve()
    commands = [
        ["tasks.tokenize", "--corpus", str(data / "corpus"), "--tokenizer", "encoder", "--out", "tokens"],
        ["tasks.encode", "--tokens", "tokens/documents", "--encoder", "encoder", "--out", "embeddings"],
        [
            *("tasks.retrieve", "--name", "champion", "--encoder", "encoder", "--embeddings", "embeddings", "--tokens", "tokens"),
            *(*searched, "--out", "runs"),
        ],
        [
            *("tasks.evaluate", "--name", "champion", "--runs", "runs", "--qrels", str(data / "corpus/qrels")),
            *("--values", "values", "--metrics", "metrics.json"),
        ],
    ]
    env = environment(PYTHONPATH=os.pathsep.join(filter(None, [str(Path.cwd()), os.environ.get("PYTHONPATH", "")])))
    with contextlib.chdir(SCRATCH):
        problem = run_stages(commands, processes, lambda _, line: display.output(name, line), env)
    if problem:
        raise UserError(f"{name} could not be measured on the new data: {problem.message}")
    return dict(json.loads((SCRATCH / "metrics.json").read_text(encoding="utf-8")))


def values(folder: Path, measure: str, measured: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """`measure` of every dev query, from the values of a model with the metrics `measured`; UserError where there is no dev."""
    import pyarrow as pa

    from tasks.core.tables.parquet import read_table

    path = folder / "dev.parquet"
    if not path.exists():
        raise UserError(f"{path}: not found: the data set has no judged dev queries, on which models are compared; add some")
    schema = pa.schema([("query", pa.string()), *((name, pa.float64()) for name in measured["dev"])])
    table = read_table(path, schema, ["query", measure])
    return dict(zip(table["query"].to_pylist(), table[measure].to_pylist(), strict=True))


@contextlib.contextmanager
def _inside(tree: retraining_tree.Tree) -> Iterator[retraining_tree.Tree]:
    with contextlib.chdir(tree.folder):
        yield tree


def _number(project: Path) -> int | None:
    with contextlib.suppress(UserError, OSError):
        now = champion.current(project)
        return now.number if now else None
    return None


def main() -> int:
    """The pipeline alone, in the current folder, its parameters checked before: `python -m flows.retraining.retrain`."""
    try:
        with one_line_errors():
            run.run(check=lambda: None, quiet=True, with_dev=True)
    except run.StagesFailed as failed:
        tell(failed.problems)
        return failed.status
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
