"""`retemper new`: make a project for the user's own data, which is checked before the project appears.

The project is built in a hidden folder next to its final place, so that relative paths lead to the same files, and is moved at the end.
If it fails or is stopped, nothing is left behind; the next `retemper new` in the same place removes what a killed one left.
"""

import os
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.measuring import environments, timing
from flows.measuring.sizes import size_of
from flows.parameters import edit, recipes
from flows.parameters.checks import check
from flows.pipeline import splits
from flows.pipeline.plan import check_parameters
from flows.pipeline.stage import run_stage
from flows.process.display import Display
from flows.process.owners import abandoned, owned_prefix
from flows.process.prepared import FORKS
from flows.process.processes import Processes, stopping_on_signals
from flows.projects import estimate
from flows.projects.answers import AUTO, CACHE, NONE, physical, relative_answer, relative_data
from flows.projects.layout import code_source, lay_out, write_readme
from flows.projects.lengths import FOREIGN, MARKED, measure, suggest_length, token_limit
from flows.projects.record import CHECKOUT, Version
from flows.repository.git import git
from flows.repository.graph import DEFAULT_TARGET, read_graph
from flows.repository.project import dvc_errors, refuse_separator, repository
from flows.storage import links, makings
from flows.storage.cache import cache_folder
from flows.storage.remote import WARNING
from flows.team import remotes
from tasks.core.errors import UserError
from tasks.core.files import delete, read_json
from tasks.core.params.safe_yaml import parse_yaml
from tasks.core.params.sections import read_yaml
from tasks.core.sources.datasets import local_path, parse_dataset, parse_encoder
from tasks.core.stage.frozen import freeze

HIDDEN = ".retemper-new"  # how the name of a project that is being made begins
REMOTE = "team"
COLD_START = "cold_start"
WIKIPEDIA = ("rounds.costa_warmup=", "pretrain.costa=")  # the demo's pre-training, on Wikipedia
MADE = "; to train on queries made from the documents: retemper new --queries pseudo"
EPOCH = ("rounds.warmup.epochs=1", "rounds.star.epochs=1")  # the demo's are short, for a demo
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Answers:
    """The answers to the questions. `length` is called with the tokens that 95% of the documents do not exceed, the suggestion, and the
    most tokens that the encoder reads.

    `sets`: further edits of params.yaml; `code`: a source of Retemper in place of the installed one; `like`: a finished project whose
    times are scaled.
    """

    data: str
    queries: str
    encoder: str
    share: str
    length: Callable[[int, int, int], str]
    sets: Sequence[str] = ()
    code: str = ""
    like: Path | None = None


def refuse_place(folder: Path) -> None:
    """Raise UserError if no project can be made: something is there, the folder above it is missing, or its name is invalid."""
    refuse_separator(folder.absolute())
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise UserError(f"{folder}: found a file, expected a new folder; name another")
    if folder.is_dir() and any(folder.iterdir()):
        raise UserError(f"{folder}: found a folder with files, expected a new or empty one; name another")
    if not folder.absolute().parent.is_dir():
        raise UserError(f"{folder.absolute().parent}: no such folder, expected one to make the project in; make it first")


def new(folder: Path, wanted: Answers, tell: Tell) -> int:
    """Make a project in `folder`; return the exit status. Raises UserError, with nothing left behind, if the data or an answer is unfit."""
    refuse_place(folder)
    typed, folder, shared = folder, physical(folder), _shared(wanted.share)
    place_end = "/" if local_path(parse_dataset(wanted.data).place).is_dir() else ":"  # what follows the data's place in a line
    shown_place, typed_place = (f"{parse_dataset(spec).place}{place_end}" for spec in (relative_data(folder, wanted.data), wanted.data))
    processes, display = Processes(), Display()
    with stopping_on_signals(processes, lambda: "\nretemper: stopped; nothing was left behind\n"), _beside(folder) as project:
        with tempfile.TemporaryDirectory() as scratch:
            version = lay_out(project, code_source(wanted.code, Path(scratch)))
        _set_parameters(project, folder, wanted)
        with chdir(project):
            if wanted.share != NONE and not wanted.share.startswith(CACHE):
                tell(remotes.add(REMOTE, wanted.share if "://" in wanted.share else str(shared), []))
            if not wanted.share.startswith(CACHE):
                tell(links.choose(project))
            stages, stats = _check_data(
                processes, display, wanted.sets, tell=tell, as_typed=lambda line: line.replace(shown_place, typed_place)
            )
            tokens = _length(wanted, tell, display.warn)
            if not any(setting.startswith("tokenize.document_length=") for setting in wanted.sets):
                edit.apply([f"tokenize.document_length={tokens}"], Path("params.yaml"), check)
            freeze()
            if wanted.queries == "pseudo":
                tell(f"no judged queries are trained on: they are made from the documents (queries: pseudo, recipe {COLD_START})")
            lines = _estimates(stages, stats, wanted)
            write_readme(project, name=folder.name, data=str(read_yaml(Path("params.yaml"))["dataset"]["source"]), version=version)
            _commit(str(version))
        is_new, names = not folder.exists(), [path.name for path in project.iterdir()]
        _move(project, folder)
    try:
        if wanted.share.startswith(CACHE):
            with chdir(folder):
                tell(remotes.share(shared))
    except BaseException:
        for name in names:
            delete(folder / name)
        if is_new:
            with suppress(OSError):  # the user's own files are in it by now
                folder.rmdir()
        raise
    _print_next_steps(typed, version, lines, tell=tell)
    return 0


@contextmanager
def _beside(folder: Path) -> Iterator[Path]:
    """Yield a hidden folder next to `folder`, and remove it afterwards. Folders left by killed processes are removed first."""
    for leftover in abandoned(folder.parent, HIDDEN):
        shutil.rmtree(leftover, ignore_errors=True)
    hidden = Path(tempfile.mkdtemp(prefix=owned_prefix(HIDDEN), dir=folder.parent))
    mask = os.umask(0)
    os.umask(mask)
    hidden.chmod(0o777 & ~mask)  # mkdtemp lets only the user in
    try:
        yield hidden
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def _commit(version: str) -> None:
    """Make the first commit, with all files of the current folder but those that the project itself ignores."""
    git("-c", f"core.excludesFile={os.devnull}", "add", ".")  # the user's own list may have data/
    git("commit", "--quiet", "-m", "Start a Retemper project", "-m", f"By retemper new, from Retemper {version}.")


def _move(project: Path, folder: Path) -> None:
    """Move `project` to `folder`. If that exists, it may be the working folder or a mount, so its place is taken by the content alone.

    UserError if it is not empty anymore, since the check of the data takes its time; what others made there is kept.
    """
    if not folder.exists():
        project.rename(folder)
        return
    refuse_place(folder)
    moved: list[Path] = []
    try:
        for path in list(project.iterdir()):
            if os.path.lexists(folder / path.name):
                raise UserError(f"{folder / path.name}: was made by another program while the project moved there; name another folder")
            moved.append(folder / path.name)
            shutil.move(path, moved[-1])
    except BaseException:
        for path in moved:
            delete(path)
        raise


def _set_parameters(project: Path, folder: Path, wanted: Answers) -> None:
    """Edit the demo's params.yaml for this data. Relative paths are relative to `folder`, where the project will be."""
    path = project / "params.yaml"
    if wanted.queries == "pseudo":
        recipes.apply(COLD_START, path, project / recipes.MEMORY, folder=project / recipes.FOLDER)
        (project / recipes.MEMORY).unlink()  # there is no earlier form to go back to
    else:
        edit.apply([*WIKIPEDIA, *EPOCH], path, lambda _: None)
    answers = {
        "dataset.source": relative_data(folder, wanted.data),
        "queries": wanted.queries,
        "encoder.source": relative_answer(folder, wanted.encoder),
    }
    edit.apply([f"{key}={_quoted(value)}" for key, value in answers.items()], path, lambda _: None)
    edit.apply(wanted.sets, path, check, by_user=True)
    check(read_yaml(path))


def _quoted(value: str) -> str:
    """A text as YAML, quoted only if necessary."""
    try:
        plain = parse_yaml(value) == value
    except Exception:
        plain = False
    return value if plain else "'" + value.replace("'", "''") + "'"


def _check_data(
    processes: Processes, display: Display, sets: Sequence[str], *, tell: Tell, as_typed: Callable[[str], str]
) -> tuple[list[str], dict[str, Any]]:
    """Run stage prepare, which reads all of the data, in the current folder. Return the stages of a run and what prepare counted.

    `as_typed` changes the data's path in a line of the stage to the one that the user typed.

    If the data has no training queries, or only one document, the project gets the recipe that trains nothing.
    """

    def show(line: str) -> None:
        if not line.startswith("\r") and (line.startswith(WARNING) or not line.startswith("retemper: ")):  # its error is raised below
            tell(as_typed(line))

    check_parameters()
    freeze()
    forks = {name: value for name, value in os.environ.items() if name == FORKS}
    clock = timing.Clock(cache=cache_folder())
    clock.provenance = makings.current_provenance()
    clock.began(splits.STAGE)
    outcome = run_stage(splits.STAGE, processes, show, env=forks | environments.begin(splits.STAGE))
    if outcome.problem:
        raise UserError(as_typed(outcome.problem.message))
    span = timing.Span(splits.STAGE, outcome.began, outcome.began, outcome.ended, "", "Ran")
    clock.ended(span, environments.read_environment(splits.STAGE), environments.cost(splits.STAGE))
    stats, path = dict(read_json(splits.STATS)), Path("params.yaml")
    stages, sections = _stages(), read_yaml(path)
    single = stats["documents"]["count"] == 1  # no negative of its own queries
    if sections["queries"] == "corpus" and (single or not stats["splits"]["train"]["queries"]) and splits.training_stages(stages, sections):
        recipes.apply(recipes.ZERO_SHOT)
        recipes.MEMORY.unlink()  # there is no earlier form to go back to
        display.warn(
            f"{sections['dataset']['source']}: found {'1 document' if single else 'no train queries'}, so the project trains nothing "
            f"(recipe {recipes.ZERO_SHOT}){'' if single else MADE}"
        )
        try:
            edit.apply(sets, path, check)
        except UserError:
            kept = _outside_of_missing(sets, read_yaml(path))
            if not (left_out := [setting for setting in sets if setting not in kept]):
                raise
            display.warn(f"left out, because the recipe has no such entry: {', '.join(f'--set {setting}' for setting in left_out)}")
            edit.apply(kept, path, check)
        stages = _stages()
    if warning := splits.check(stages, read_yaml(path)):
        display.warn(warning)
    return stages, stats


def _outside_of_missing(sets: Sequence[str], sections: Mapping[str, Any]) -> list[str]:
    """The edits that do not change a key of an entry, as rounds.warmup, that neither `sections` nor an edit has: they would make a part."""
    keys = [setting.partition("=")[0].strip().split(".") for setting in sets]
    made = [key for key in keys if len(key) < 3]
    return [
        setting
        for setting, key in zip(sets, keys, strict=True)
        if key[:2] in made or len(key) < 3 or key[1] in (sections.get(key[0]) or {})
    ]


def _stages() -> list[str]:
    """The stages of a run with the current parameters."""
    with dvc_errors(), repository() as repo:
        graph = read_graph(repo)
        return list(graph.upstream_of(graph.resolve([DEFAULT_TARGET])).stages)


def _length(wanted: Answers, tell: Tell, warn: Tell) -> int:
    """Ask how many tokens of a document to read, and return the answer. Also tell what is unusual about the documents."""
    parameters = check(read_yaml(Path("params.yaml")))
    source = parameters.encoder.source
    encoder = parse_encoder(source).folder
    measured, limit = measure(Path("data/corpus/documents.parquet"), encoder, parameters.text), token_limit(encoder)
    length_95 = measured.most
    if measured.unknown >= FOREIGN:
        share = f"{100 * measured.unknown:.0f}% of the documents' tokens"
        warn(f"encoder {source}: {share} are unknown; choose one for their language (encoder.source)")
    if measured.titled and not parameters.text.titles and wanted.queries != "pseudo":  # which makes queries of titles
        tell(
            f"{100 * measured.titled:.0f}% of the documents have a title, which is not read; text.titles=true puts it before the text, as "
            "BEIR's and Tevatron's readers do"
        )
    if measured.marked >= MARKED:
        share = f"{100 * measured.marked:.0f}% of the documents"
        tell(f"{share} have HTML, such as {measured.tag[:40]}, which is read as text; remove it at the source")
    suggested = suggest_length(length_95, limit)
    answer = wanted.length(length_95, suggested, limit)
    length = suggested if answer == AUTO else int(answer)
    if length < length_95:
        tell(f"{length} tokens of each document are read (95% have at most {length_95:,}); tokenize.passages=N reads N times as many")
    return length


def _estimates(stages: list[str], stats: Mapping[str, Any], wanted: Answers) -> list[str]:
    parameters = check(read_yaml(Path("params.yaml")))
    size, digest = size_of(stats, parameters.tokenize), str(read_json(estimate.SOURCE)["encoder"]["digest"])
    place = wanted.like or CHECKOUT
    shares = wanted.share.startswith(CACHE) or links.kind(Path.cwd()) != links.COPY  # a shared cache has symbolic links at least
    todo = [stage for stage in stages if stage != splits.STAGE]  # it has run
    return [
        estimate.time_line(todo, size, parameters, encoder=digest, like=estimate.known(place), place=place),
        estimate.disk_line(size, parameters, parse_encoder(parameters.encoder.source).folder, shares=shares),
    ]


def _shared(answer: str) -> Path:
    """The folder that `answer` to --share names, if it names one. A relative path starts at the current folder, as all of them do."""
    place = local_path(answer.removeprefix(CACHE))
    return place if place.is_absolute() else physical(place)


def _print_next_steps(folder: Path, version: Version, lines: Sequence[str], *, tell: Tell) -> None:
    for line in lines:
        tell(line)
    tell(f"{folder}: a project of Retemper {version}, committed")
    enter = "" if folder == Path() else f"cd {shlex.quote(str(folder))} && "
    tell(f"next: {enter}retemper run (or make run, which sets up its own .venv)")
    tell("or first compare BM25 and the encoder on a sample of the data, within minutes: retemper preview")
