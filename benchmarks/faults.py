"""Seeded schedules of faults over `retemper run`: kill, torn write, EIO, full disk, power cut (faulty_files.py says what each is).

    python benchmarks/faults.py --schedules 1000 --seed 1

A schedule is a function of the seed and its number: where the project starts from, and one to three runs, each with one fault; a later
one strikes the recovery from the former. `--only N` replays schedule N. After every run that was disturbed:

- every object of the cache and the remote has the content that its name says (after a power cut: at the end, for a file that was cut
  short is found when it is needed);
- no process is left after GONE_SECONDS, and no traceback was shown;
- where a write failed (EIO, full disk) and the run with it, one line says so, with status 2 for a full disk.

Then `retemper run` without a fault must succeed, every out of dvc.lock must have the digest of the undisturbed run's, in dvc.lock, in
the cache and in the folder, no temporary file may lie about, and one more run must find nothing to do (looked at in every third
schedule). Linux with a C compiler.
"""

import argparse
import random
import re
import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).resolve().parents[1])]  # tests/forks.py

from faulty_files import ALL, Fault, Faults, Place, build, compiler, draw, power_cut  # noqa: E402
from faulty_project import GONE_SECONDS, STARTS, Project, prepared, run, starts  # noqa: E402

RUNS, WEIGHTS = (1, 2, 3), (6, 3, 1)  # disturbed runs of a schedule
DISK = {"EIO": "Input/output error", "ENOSPC": "No space left on device"}
LINE = re.compile(r"^retemper: (?!warning)(.*)$", re.MULTILINE)
TRACEBACK = re.compile(r"^(\S+ +\| )?Traceback", re.MULTILINE)


@dataclass(frozen=True)
class Undisturbed:
    """What a start's run meets and makes when nothing happens to it."""

    census: Counter[Place]
    outs: Mapping[str, str]
    half_written: Sequence[str]


@dataclass(frozen=True)
class Schedule:
    """From where, and the fault of each disturbed run."""

    number: int
    start: str
    faults: tuple[Fault, ...]

    def __str__(self) -> str:
        return f"schedule {self.number} from {self.start}: {'; then '.join(map(str, self.faults))}"


@dataclass
class Result:
    """What came of a schedule: which fault struck what, and what was wrong."""

    schedule: Schedule
    struck: list[str] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def schedule_of(seed: int, number: int, undisturbed: Mapping[str, Undisturbed], kinds: tuple[str, ...] = ALL) -> Schedule:
    """Schedule `number` of a seed."""
    chance = random.Random(f"{seed} {number}")
    start = chance.choices(list(undisturbed), [STARTS[name] for name in undisturbed])[0]
    count = chance.choices(RUNS, WEIGHTS)[0]
    return Schedule(number, start, tuple(draw(undisturbed[start].census, chance, kinds) for _ in range(count)))


def disturb(project: Project, fault: Fault, seed: str, result: Result, was_cut: bool) -> bool:
    """One run with a fault in it, and what must be so at once; whether it cut the power. `was_cut`: an earlier run has."""
    faults = Faults(project.folder.with_name("faults"), project.folder, fault)
    process = project.run(faults.environment)
    hits = faults.hits()
    is_cut = bool(hits) and fault.kind == "cut"
    remaining = project.end(0 if is_cut else GONE_SECONDS)
    result.struck += [hit.partition("\t")[0] for hit in hits]
    result.statuses.append(process.returncode)
    output = f"status {process.returncode}\n{process.stdout[-3000:]}\n{process.stderr[-3000:]}"

    def wrong(text: str) -> None:
        result.wrong.append(f"{fault}: {text}")

    if remaining:
        wrong(f"left behind: {remaining}")
    if not hits and process.returncode:
        wrong(f"a run that met no fault failed: {output}")
    if is_cut:
        for line in power_cut(faults, seed):
            result.struck.append(f"  {line}")
        return True
    if not was_cut and (objects := project.wrong_objects()):
        wrong(f"wrong objects: {objects}")
    if TRACEBACK.search(process.stdout + process.stderr):
        wrong(f"a traceback: {output}")
    lines = LINE.findall(process.stderr)
    if hits and process.returncode and fault.kind in DISK:
        if len(lines) != 1 or DISK[fault.kind] not in lines[0]:
            wrong(f"expected one line with {DISK[fault.kind]!r}: {output}")
        if fault.kind == "ENOSPC" and process.returncode != 2:
            wrong(f"expected status 2: {output}")
    if hits and process.returncode not in (0, 1, 2, -9, 137):
        wrong(f"an unexpected status: {output}")
    return False


def check(project: Project, undisturbed: Undisturbed, result: Result) -> None:
    """A run without faults, and what must then be so."""
    process = project.run()
    output = f"status {process.returncode}\n{process.stdout[-3000:]}\n{process.stderr[-3000:]}"
    if process.returncode:
        result.wrong.append(f"the next run failed: {output}")
        return
    outs = project.outs()
    if different := sorted(name for name in outs.keys() | undisturbed.outs.keys() if outs.get(name) != undisturbed.outs.get(name)):
        result.wrong.append(f"not the undisturbed run's: {different}")
    if outs := project.wrong_outs():
        result.wrong.append(f"not what dvc.lock says: {outs}")
    if objects := project.wrong_objects():
        result.wrong.append(f"wrong objects: {objects}")
    if half := sorted(set(project.half_written()) - set(undisturbed.half_written)):
        result.wrong.append(f"half-written: {half}")
    if left := project.end(GONE_SECONDS):
        result.wrong.append(f"left behind: {left}")
    if result.schedule.number % 3:
        return
    again = project.run()
    if again.returncode or "executed 0" not in again.stdout:
        result.wrong.append(f"a run after success: status {again.returncode}\n{again.stdout[-3000:]}\n{again.stderr[-3000:]}")


def carry_out(schedule: Schedule, seed: int, source: Project, undisturbed: Undisturbed, folder: Path) -> Result:
    """All runs of a schedule in `folder`, which is replaced."""
    shutil.rmtree(folder, ignore_errors=True)
    project = source.copy_to(folder / "project")
    project.environment["DVC_SITE_CACHE_DIR"] = str(folder / "site")
    result = Result(schedule)
    was_cut = False
    for number, fault in enumerate(schedule.faults):
        was_cut |= disturb(project, fault, f"{seed} {schedule.number} {number}", result, was_cut)
    check(project, undisturbed, result)
    return result


def study(source: Project, folder: Path) -> Undisturbed:
    """The undisturbed run of a start: once."""
    project = source.copy_to(folder / "project")
    project.environment["DVC_SITE_CACHE_DIR"] = str(folder / "site")
    census = Faults(folder / "faults", project.folder, census=True)
    project.environment |= census.environment
    run(project)
    return Undisturbed(census.census(), project.outs(), project.half_written())


def table(results: Sequence[Result]) -> str:
    """What was struck: by kind of fault, role, operation, and class of path."""
    rows: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for result in results:
        for hit in result.struck:
            if not hit.startswith(" "):
                kind, operation, path, role, _ = hit.split()
                rows[kind, role.partition(":")[0]][f"{operation} {path}"] += 1
    lines = ["| fault | in | struck | where |", "|---|---|---:|---|"]
    for (kind, role), places in sorted(rows.items()):
        lines.append(f"| {kind} | {role} | {sum(places.values())} | {', '.join(f'{name} {n}' for name, n in places.most_common())} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedules", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=1, help="number of the first schedule (default: %(default)s)")
    parser.add_argument("--only", type=int, nargs="+", metavar="N", help="replay these schedules, and show all that was lost")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no schedule after that time")
    parser.add_argument("--jobs", type=int, default=1, help="schedules side by side (default: %(default)s)")
    parser.add_argument("--start", choices=STARTS, nargs="+", default=list(STARTS), help="where schedules start (default: all)")
    parser.add_argument("--kind", choices=ALL, nargs="+", default=list(ALL), help="which faults (default: all)")
    parser.add_argument("--folder", type=Path, help="where to work (default: a temporary one); kept")
    options = parser.parse_args()
    if not compiler():
        raise SystemExit("no C compiler (cc, gcc, clang), or not Linux")
    folder = (options.folder or Path(tempfile.mkdtemp(prefix="faults-"))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - start:7.1f} {text}", flush=True)

    try:
        with prepared(folder / "shared", build(folder)) as environment:
            return simulate(options, folder, environment, say)
    finally:
        if not options.folder:
            shutil.rmtree(folder, ignore_errors=True)


def simulate(options: argparse.Namespace, folder: Path, environment: Mapping[str, str], say: Callable[[str], None]) -> int:
    """All schedules; the exit status."""
    sources = {name: source for name, source in starts(folder / "starts", environment).items() if name in options.start}
    known = {name: study(source, folder / "undisturbed" / name) for name, source in sources.items()}
    for name, clean in known.items():
        say(f"undisturbed from {name}: {len(clean.outs)} outs, {sum(clean.census.values())} file calls at {len(clean.census)} places")
    numbers = options.only or range(options.first, options.first + options.schedules)
    results: list[Result] = []
    at_work, since = time.monotonic(), 0.0

    def try_schedule(number: int) -> None:
        nonlocal since
        if time.monotonic() - at_work > 60 * options.minutes:
            return
        schedule = schedule_of(options.seed, number, known, tuple(options.kind))
        place = folder / f"work-{number % (4 * options.jobs) if not options.folder else number}"
        result = carry_out(schedule, options.seed, sources[schedule.start], known[schedule.start], place)
        results.append(result)
        if result.wrong or options.only:
            say("\n   ".join([str(schedule), *result.struck, f"statuses {result.statuses}", *(f"WRONG {text}" for text in result.wrong)]))
        else:
            shutil.rmtree(place, ignore_errors=True)
        spent = time.monotonic() - at_work
        if spent - since > 10 or len(results) == len(numbers):
            since, rate = spent, len(results) / spent
            failed = sum(bool(result.wrong) for result in results)
            left = (len(numbers) - len(results)) / rate
            say(f"{len(results)}/{len(numbers)} schedules, {failed} failed, {60 * rate:.1f}/min, {left / 60:.1f} min left")

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(try_schedule, numbers))
    struck = sum(not hit.startswith(" ") for result in results for hit in result.struck)
    runs = sum(len(result.schedule.faults) for result in results)
    failed = [result.schedule.number for result in results if result.wrong]
    say(f"{len(results)} schedules of seed {options.seed}, {runs} disturbed runs, {struck} faults struck; failed: {failed or 'none'}")
    print(table(results))
    return 1 if failed or not results else 0


if __name__ == "__main__":
    raise SystemExit(main())
