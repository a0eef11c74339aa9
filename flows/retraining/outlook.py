"""What is known about a retraining before it trains: its data, its mode, and what its comparison can show.

The current folder is the retrainings' worktree.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from flows.batches import merge
from flows.champions import champion, history, measurement
from flows.champions import tree as retraining_tree
from flows.champions.champion import Champion
from flows.intake import inbox, settings, shrinkage
from flows.parameters import edit
from flows.parameters.sources import source_keys
from flows.pipeline import run
from flows.pipeline.plan import check_parameters
from flows.process.display import Display, Outcome
from flows.process.processes import Processes, stopping_on_signals
from flows.promotion import evidence, power
from flows.promotion.rule import measure_of
from flows.promotion.standing import rivals, way_out
from flows.repository.project import settings_errors
from flows.retraining import notify, plan
from flows.retraining.pipeline import run_pipeline
from flows.retraining.settings import Retraining, read_retraining
from flows.watching.record import BEFORE, StageNow, recording
from tasks.core.errors import printable
from tasks.core.params.sections import read_yaml


@dataclass(frozen=True)
class Outlook:
    """`intake`: a record of each batch of the inbox, None without one; `known`: every champion, oldest first, as the tags have them;
    `champions`: the same with their settings.
    """

    rules: Retraining
    measure: str
    intake: list[dict[str, Any]] | None
    known: Sequence[Champion]
    champions: Sequence[Champion]
    planned: plan.Planned

    @property
    def current_champion(self) -> Champion | None:
        """The champion that a new model is compared with."""
        return self.champions[-1] if self.champions else None

    @property
    def end(self) -> str:
        """A line on what a new model will be compared with, and by which rule, or on why there is no comparison."""
        if self.planned.choice.mode == "skip":
            return "nothing to do: the retraining would end as unchanged"
        if self.current_champion is None:
            return "the new model becomes the first champion, without a comparison"
        compared = champion.describe(self.current_champion)
        return f"the new model is compared with {compared}: {self.measure}, promotion.rule {self.rules.promotion.rule}"


def look(
    project: Path,
    tree: retraining_tree.Tree,
    *,
    bring: Callable[..., None],
    processes: Processes,
    display: Display,
    lasting: bool = True,
) -> Outlook:
    """Edit the worktree's params.yaml for this retraining, and print what it will do.

    `bring` brings stages up to date; it prepares the data set. Raises UserError if the retraining is impossible.
    `lasting`: record what is found in batches, and notify people of it. If False, do neither, and prepare no data in mode `full`.
    """
    rules = read_retraining()
    intake = take_in(rules.intake, project, display, processes=processes, lasting=lasting)
    measure = measure_of(rules.promotion, read_yaml(Path("params.yaml")))
    known = champion.read_champions(project)
    champions = champion.with_settings(project, known)
    now = champions[-1] if champions else None
    planned = plan.make(project, rules.retrain, champions, fused=rules.promotion.fusions, run=lambda wanted: bring(targets=wanted))
    if rules.retrain.mode != "full" or not lasting:
        display.line(f"retraining: {planned.choice.mode}: {planned.choice.why}")
    if planned.systems and planned.choice.mode == "full":
        display.line(f"retraining: only {', '.join(planned.systems)} (retrain.systems), and what they need")
    is_prepared = lasting or planned.choice.mode != "full" or bool(now and rules.retrain.mode != "full")  # to decide on the mode
    if planned.choice.mode == "full" and lasting:
        bring(targets=["prepare"])
    if now and is_prepared and rules.intake.shrink is not None:
        kept_out = [batch["name"] for batch in intake or () if batch["state"] == "quarantined" and batch["had"]]
        shrinkage.refuse(project, now, rules.intake.shrink, kept_out=kept_out, warn=display.warn)
    if planned.choice.mode != "skip":
        for rival in rivals(champions, measure, rules.promotion):
            remedy = way_out(champions, rival, measure, rule=rules.promotion)
            measurement.warn_if_not_comparable(project, rival, remedy, warn=display.warn)
        if is_prepared and read_yaml(Path("params.yaml")).get("queries") != "pseudo":
            evidence.foresee(Path("data/corpus"), measure, rules.promotion, warn=display.warn)
        last = history.read_outcome(tree.folder, tree.tip) if tree.tip else None
        if line := power.foresee((last and last.comparison) or {}, rules.promotion, measure):
            display.line(line)
    return Outlook(rules, measure, intake, known, champions, planned)


def foresee(project: Path, follow: str = "HEAD", check: Callable[[], None] = check_parameters) -> None:
    """Say what a retraining of `project` at its commit `follow` would take in, which mode it would have, and which stages may run.

    Only what the choice of the mode depends on is run: `prepare`, unless the mode is `full`. Batches are checked, but neither recorded nor
    reported; champions of other machines are not fetched. Raises UserError if the retraining would be refused, or one is in progress.
    """
    display, processes = Display(), Processes()
    with retraining_tree.hold_for_dry_run(project), stopping_on_signals(processes), settings_errors():
        tree = retraining_tree.prepare(project, follow, lambda _: None)
        with contextlib.chdir(tree.folder):
            bring = partial(run_pipeline, check, processes, display)
            outlook = look(project, tree, bring=bring, processes=processes, display=display, lasting=False)
            display.line(outlook.end)
            if outlook.planned.choice.mode != "skip":
                for line in run.dry_run(check=check).lines():
                    display.line(line)


@contextlib.contextmanager
def _show_in_watch(rule: settings.Intake) -> Iterator[Callable[[str], None]]:
    """Show the check of an inbox in `retemper watch`. Yields a function that takes the line to show."""
    if rule.inbox is None:
        yield lambda _: None
        return
    stage = StageNow("checking batches", "running", began=time.time(), said="reading the data set")
    with recording([stage], BEFORE, part=True) as recorder:
        yield partial(recorder.said, stage.name)
        recorder.ended(stage.name, Outcome("Ran"))


def take_in(
    rule: settings.Intake, project: Path, display: Display, *, processes: Processes, lasting: bool = True
) -> list[dict[str, Any]] | None:
    """Set the data to train on in the worktree's params.yaml, and make paths relative to the project absolute.

    Returns one record per batch of the inbox, None without an inbox. Quarantined and missing batches are reported.
    """
    intake = inbox.Selection("")
    sections = read_yaml(Path("params.yaml"))
    edits = []
    for key, name in source_keys(sections):
        if key == "dataset.source":
            with _show_in_watch(rule) as doing:
                intake = inbox.take_in(rule, name, project, say=display.line, doing=doing, processes=processes, lasting=lasting)
            value = intake.spec
        elif key == "articles.source":
            value = merge.absolute(name, project)
        else:  # an encoder: a Hugging Face id, package:MODULE/FOLDER, or a folder
            folder = project / Path(name).expanduser()
            value = str(folder.resolve()) if not name.startswith("package:") and folder.is_dir() else name
        if value != name:
            edits.append(edit.setting(key, value))
    edit.apply(edits, Path("params.yaml"), lambda _: None)
    for batch in intake.batches:
        display.line(printable(batch.line))
    if intake.missing:
        line = printable(f"batches that the last retraining had are gone from the inbox: {', '.join(intake.missing)}; put them back")
        display.warn(line)
        if lasting:
            notify.notify("missing", f"{project.name}: {line}", display.warn, batches=list(intake.missing))
    if intake.bad and lasting:
        line = "; ".join(batch.line for batch in intake.bad)
        notify.notify("quarantined", printable(f"{project.name}: {line}"), display.warn, batches=[batch.name for batch in intake.bad])
    return [batch.record for batch in intake.batches] if intake.batches else None
