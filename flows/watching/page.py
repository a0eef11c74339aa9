"""The page of `retemper watch`, in parts that are replaced when they change: running stages, curves, results, all stages."""

import re
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from markupsafe import Markup

from flows.process.display import clock
from flows.results import metrics
from flows.watching.record import StageNow
from flows.watching.runs import Seen, progress_share, seconds_left
from tasks.core.charts.curves import Curve, load_curves
from tasks.core.charts.page import ASKS, page, table
from tasks.core.charts.vega import curve_lines, figure, legend
from tasks.core.errors import UserError
from tasks.core.files import partial_path
from tasks.core.plurals import counted

LOGS = Path(".retemper/logs")
LAST_BYTES, LAST_LINES = 8192, 14  # of a log
SILENT = 60.0  # seconds without a new record after which a run on another machine, which cannot be checked, may be dead
# Stages that train, by the folder of their curves.
TRAINED = {"train": "data/curves", "adore": "data/curves", "reranker": "data/curves", "pretrain": "data/pretrain_curves"}
MEASURED = re.compile(r"evaluate_(bm25)|evaluate(?:_\w+)?@(.+)")  # a stage that measures a system, by its name
SHOWN = ("ran", "failed", "stopped", "running")  # states of stages that took time
PAGES = {"report": Path(".retemper/report.html"), "timeline": LOGS / "timeline.html"}  # pages of a run that has ended


def shell(project: str) -> str:
    """The empty page, before its parts are loaded."""
    css = (Path(__file__).parent / "watch.css").read_text(encoding="utf-8")
    script = (Path(__file__).parent / "watch.js").read_text(encoding="utf-8")
    parts = Markup("").join(Markup('<section id="{}"></section>').format(name) for name in ("now", "charts", "results", "stages"))
    top = Markup('<style>{}</style><nav id="runs" aria-label="Runs"></nav><div id="state"></div><p id="spoken" role="status"></p>')
    end = Markup('<p class="note" id="machine"></p><script>{}</script>')
    return page(project, top.format(Markup(css)) + parts + end.format(Markup(script)), ASKS)


def parts(seen: Sequence[Seen], chosen: Seen | None, now: float | None = None, *, place: str | None = None) -> dict[str, str]:
    """The page's parts: HTML by the id of the element that it fills. Only `state`, `now`, and `stages` change merely with time.

    If the tree of `place` is gone, as those of evaluations are in the end, the page keeps what it shows.
    """
    now = time.time() if now is None else now
    if chosen is None and place is not None:
        missing = Markup('<p>No run in {}: some commands remove their trees when they end. <a href="/">What runs now</a></p>')
        return {"runs": _runs(seen, chosen), "state": missing.format(place)}
    if chosen is None:
        empty = Markup("<p>No run is recorded in this project yet; start one with <code>retemper run</code>.</p>")
        return {"runs": "", "state": empty, "spoken": "", "now": "", "charts": "", "results": "", "stages": ""}
    return {
        "runs": _runs(seen, chosen) if len(seen) > 1 else "",
        "state": _state(chosen, now),
        "spoken": Markup("{}").format(_counts(chosen)),
        "now": _at_work(chosen, now),
        "charts": _charts(chosen),
        "results": _results(chosen),
        "stages": _stages(chosen, now),
    }


def summary(seen: Seen, now: float | None = None) -> str:
    """`running, 12 of 37 stages, 3m12s, about 9m04s left`; also in the page's title."""
    now, run = time.time() if now is None else now, seen.run
    phrases = [_counts(seen), clock(seen.until(now) - run.began)]
    if seen.alive:
        left, unknown = seconds_left(run, now)
        several = sum(stage.state == "running" for stage in run.stages) > 1  # while the estimate assumes one after another
        if left:
            more = f" and {counted(unknown, 'stages')} of unknown time" if unknown else ""
            which = f" of {'this stage' if len(run.stages) == 1 else 'these stages'}" if run.part else ""
            phrases.append(f"{'at most' if several else 'about'} {clock(left)}{more} left{which}")
        elif unknown:
            phrases.append("time left unknown")
    silent = now - seen.recorded_at
    if seen.alive and run.host != socket.gethostname() and silent > SILENT:
        phrases.append(f"nothing heard for {clock(silent)}")
    suffix = "; the command continues" if seen.continues else "; the same command resumes" if seen.state in ("stopped", "killed") else ""
    if seen.alive and run.part:
        suffix = "; the command continues after that"
    return ", ".join(phrases) + suffix


def _counts(seen: Seen) -> str:
    done = sum(stage.state in ("ran", "cached") for stage in seen.run.stages)
    state = "killed (its process is gone)" if seen.state == "killed" else seen.state
    alone = f" ({seen.run.stages[0].name})" if len(seen.run.stages) == 1 else ""  # the first run of a command that goes on in its own tree
    return f"{state}, {done} of {counted(len(seen.run.stages), 'stages')}{alone}"


def _runs(seen: Sequence[Seen], chosen: Seen | None) -> Markup:
    link = Markup('<div><a href="?place={}"{}>{}</a> <span class="note">{}, {}</span></div>')
    current = Markup(' aria-current="page"')
    return Markup("").join(
        link.format(quote(item.place), current if item is chosen else Markup(""), item.run.command, item.place, item.state) for item in seen
    )


def _state(seen: Seen, now: float) -> Markup:
    where = f"process {seen.run.process} on {seen.run.host}"
    lead = Markup('<p class="lead"><code>{}</code> in {}, since {} ({})<br><b class="{}">{}</b></p>').format(
        seen.run.command, seen.place, seen.since, where, seen.state, summary(seen, now)
    )
    problem = Markup('<p class="worse">{}</p>').format(seen.run.problem) if seen.run.problem not in ("", "stopped") else Markup("")
    links = [
        Markup('<a href="{}?place={}" target="_blank">{}</a>').format(kind, quote(seen.place), kind)
        for kind, path in PAGES.items()
        if not seen.alive and (seen.folder / path).is_file()
    ]
    return lead + problem + (Markup("<nav>{}</nav>").format(Markup(" ").join(links)) if links else Markup(""))


def _at_work(seen: Seen, now: float) -> Markup:
    """A card for each stage that runs or has failed, with the end of its log."""
    cards = []
    for stage in seen.run.stages:
        if stage.state not in ("running", "failed", "stopped"):
            continue
        ended = stage.ended or seen.until(now)
        took = clock(ended - (stage.began or ended))
        likely = f" of about {clock(stage.estimate)}" if stage.estimate is not None and stage.state == "running" else ""
        done = progress_share(stage.said)
        bar = Markup("")
        if done is not None and seen.alive:
            bar = Markup('<progress max="1" value="{:.4f}" aria-label="{}"></progress>').format(done, stage.name)
        message = Markup('<p class="said">{}</p>').format(stage.problem or stage.said) if stage.problem or stage.said else Markup("")
        log = last_lines(seen.folder, stage.name)
        log_html = Markup("")
        if log:
            log_html = Markup('<pre tabindex="0" role="region" aria-label="end of the log of {}">{}</pre>').format(
                stage.name, "\n".join(log)
            )
        cards.append(
            Markup('<article class="{}" data-key="{}"><h2>{} <span class="note">{}{}</span></h2>{}{}{}</article>').format(
                stage.state, stage.name, stage.name, took, likely, bar, message, log_html
            )
        )
    return Markup("").join(cards)


def last_lines(folder: Path, stage: str) -> list[str]:
    """The last lines that a stage and DVC have printed, in the current run, or else in the last one."""
    log = folder / LOGS / f"{stage}.log"
    for path in (partial_path(log), log):
        try:
            with path.open("rb") as handle:
                handle.seek(max(0, path.stat().st_size - LAST_BYTES))
                return handle.read().decode("utf-8", "replace").splitlines()[-LAST_LINES:]
        except OSError:
            continue
    return []


def _charts(seen: Seen) -> Markup:
    """The curves of this run's trainings, including those in progress."""
    names_by_folder: dict[str, list[str]] = {}
    for stage in seen.run.stages:
        kind, _, name = stage.name.partition("@")
        if kind in TRAINED and stage.state in SHOWN:
            names_by_folder.setdefault(TRAINED[kind], []).append(name)
    charts = Markup("")
    for folder, names in names_by_folder.items():
        shown = live_curves(seen.folder / folder, names)
        if shown:
            order = [name for name in names if any(line.name == name for lines in shown.values() for line in lines)]
            drawn = (figure(curve_lines(lines, metric, order), f"{metric} over steps") for metric, lines in shown.items())
            charts += legend(order) + Markup('<div class="charts">{}</div>').format(Markup("").join(drawn))
    return Markup("<h2>Training</h2>{}").format(charts) if charts else Markup("")


def _is_shown(metric: str) -> bool:
    return metric == "loss" or metric.startswith("validation ")


def live_curves(folder: Path, names: Sequence[str]) -> dict[str, list[Curve]]:
    """`load_curves` of the shown ones, also for trainings in progress, from the temporary folders that become their curves at the end."""
    curves: dict[str, list[Curve]] = {}
    for name in names:
        own_curves: dict[str, list[Curve]] = {}
        for place in (partial_path(folder / name).name, name):
            with suppress(OSError, ValueError):  # being replaced, as at the end of a training
                own_curves = own_curves or load_curves(folder, [place], _is_shown)
        for metric, lines in own_curves.items():
            curves.setdefault(metric, []).extend(Curve(name, line.points) for line in lines)
    return curves


def _results(seen: Seen) -> Markup:
    """The measures of the systems that this run has evaluated, or found in the cache."""
    done = [MEASURED.fullmatch(stage.name) for stage in seen.run.stages if stage.state in ("ran", "cached")]
    names = {measured[1] or measured[2] for measured in done if measured}
    try:
        all_metrics = metrics.read_metrics(seen.folder / metrics.METRICS)
    except (UserError, OSError):  # being replaced
        return Markup("")
    header, rows = metrics.rows({name: splits for name, splits in all_metrics.items() if name in names})
    dev = [row for row in rows if row[1] == "dev"]
    return Markup("<h2>Results so far</h2>{}").format(table(header, dev)) if dev else Markup("")


def _stages(seen: Seen, now: float) -> Markup:
    """All stages: a bar over time for each that ran, and one line per state for the others."""
    run, end = seen.run, seen.until(now)
    ran = sorted((stage for stage in run.stages if stage.state in SHOWN and stage.began is not None), key=lambda stage: stage.began or 0)
    span = max(end - run.began, 1e-9)
    rows = Markup("").join(_row(stage, run.began, span, end=end) for stage in ran)
    others = Markup("")
    for state, words in (("cached", "From the cache"), ("waiting", "Waiting"), ("skipped", "Not started")):
        names = [stage.name for stage in run.stages if stage.state == state]
        if names:
            others += Markup("<p><b>{} ({})</b> {}</p>").format(words, len(names), ", ".join(names))
    return Markup('<h2>Stages</h2><div class="gantt">{}</div>{}').format(rows, others)


def _row(stage: StageNow, first: float, span: float, *, end: float) -> Markup:
    began, ended = stage.began or first, stage.ended or end
    left, width = 100 * (began - first) / span, 100 * (ended - began) / span
    bar = Markup('<span class="bar"><i class="{}" style="left:{:.2f}%;width:{:.2f}%"></i></span>').format(stage.state, left, width)
    return Markup('<div><span class="name">{}</span>{}<span class="took">{}{}</span></div>').format(
        stage.name, bar, clock(ended - began), "" if stage.state == "ran" else f", {stage.state}"
    )
