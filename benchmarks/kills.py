"""Kills `retemper run` at random moments, again and again, and compares what comes out with an undisturbed run.

    python benchmarks/kills.py --kills 100 --seed 1 --folder /tmp/kills

The real graph on sixty documents and an encoder of two layers. A pipeline is started, killed after a few seconds, started
again, until it is done: it absorbs some ten to twenty kills. Then every out of dvc.lock must be the one of a run that
nobody disturbed, no process may be left, nothing may stand in the way of the next run, no temporary file may lie about,
and no stage that was told as finished may have run twice. Between two pipelines parameters change, and runs with those are
killed and never finished.

Kill N of a seed is a draw of (seed, N) alone; what it meets depends on the machine. Linux only (/proc).
"""

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from statistics import median

from workspace import WINDOWS, Workspace, remote, start_server, write_corpus

from tasks.core.stage.scratch import KEPT

CHANGED = ["text.titles=true", "base.seed=43", "prepare.unknown_documents=drop"]  # every stage runs again
BACK = ["text.titles=false", "base.seed=42", "prepare.unknown_documents=refuse"]
LONGER = ["rounds.warmup.steps=30", "rounds.star.steps=30"]  # trainings that can be killed at work
LONGEST = 900.0  # seconds that a flow may take
END_SECONDS = 10.0  # in which a stopped flow must be gone; it aims at one, and the machine may be busy
ORPHAN_SECONDS = 3.0
STARTING_SECONDS = 60.0
AT_ONCE = 5  # stages at work at once, which a killed server takes with it
NAMED = {signal.SIGKILL: "KILL", signal.SIGTERM: "TERM", signal.SIGINT: "INT"}


@dataclass(frozen=True)
class Kill:
    """What is killed, how and when. `moment` is a window that is aimed at, `delay` seconds after it opened (or at random)."""

    number: int
    victim: str  # flow | dvc | stage | tether | client | server (of prepared Python) | all
    signal: signal.Signals
    moment: str  # random | start | commit | lock | write | checkpoint | push
    delay: float

    def __str__(self) -> str:
        return f"kill {self.number}: {self.victim} {NAMED[self.signal]} at {self.moment} + {self.delay:.3f} s"


def draw(seed: int, number: int, patience: float) -> Kill:
    """Kill `number` of a seed."""
    chance = random.Random(f"{seed} {number}")
    victim = chance.choices(["flow", "dvc", "stage", "tether", "client", "server", "all"], [4, 5, 6, 1, 1, 2, 2])[0]
    moments = {"random": 6, "commit": 2, "lock": 1, "write": 2, "checkpoint": 1}
    if victim == "stage":
        del moments["commit"]
    if victim in ("flow", "all"):
        moments["start"] = 2
    moment = chance.choices(list(moments), list(moments.values()))[0]
    longest = {"random": patience, "commit": 0.3, "lock": 0.02, "write": 0.5, "checkpoint": 0.02, "start": 6.0}[moment]
    takes_sigint = victim in ("flow", "all")  # the parts of a run ignore SIGINT
    number_of = chance.choices([signal.SIGKILL, signal.SIGTERM, signal.SIGINT], [4, 3, 3 if takes_sigint else 0])[0]
    return Kill(number, victim, number_of, moment, chance.uniform(0, longest))


@dataclass
class Record:
    """A kill that was carried out."""

    kill: Kill
    stages: tuple[str, ...]  # at work
    lost: float  # seconds that the interrupted stage processes had worked
    next: float = 0.0  # seconds until the next kill, or until the pipeline was done


@dataclass
class Harness:
    """Carries out kills in a workspace, and keeps what went wrong."""

    workspace: Workspace
    say: Callable[[str], None]
    targets: list[str] = field(default_factory=list)  # where a pipeline ends; none: at the report
    records: list[Record] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    endings: list[float] = field(default_factory=list)  # seconds that a stopped flow took to end
    resumed: int = 0

    def fault(self, text: str) -> None:
        self.faults.append(text)
        self.say(f"FAULT {text}")

    def pipeline(self, settings: list[str], kills: Iterator[Kill], quota: int, push: bool, abandon: bool = False) -> None:
        """One pipeline, killed up to `quota` times until it is done; or, if `abandon`, until the last kill."""
        finished: set[str] = set()
        pushes = 2 if push else 0
        kill = next(kills) if quota else None
        while True:
            log = self.workspace.folder.parent / f"flow-{len(self.records)}.log"
            flow = self.workspace.start(settings, log, self.targets)
            started, wounded, stopped = time.monotonic(), 0, None
            while True:
                aimed = kill
                if kill and abandon and quota == 1:
                    aimed = Kill(kill.number, "flow", kill.signal, "random", kill.delay)
                elif kill and push and quota <= pushes:  # the last ones of a pipeline that pushes
                    aimed = Kill(kill.number, kill.victim if kill.victim != "stage" else "dvc", kill.signal, "push", kill.delay % 1.5)
                record = self.strike(aimed, flow, started) if aimed else None
                if record is None:
                    break
                assert aimed
                self.close_record(record)
                quota -= 1
                kill = next(kills) if quota else None
                if aimed.victim in ("flow", "all"):
                    stopped = aimed
                    break
                wounded += AT_ONCE if aimed.victim == "server" else 1
            status = self.wait(flow, stopped)
            text = log.read_text("utf-8", "replace")
            self.resumed += text.count("resuming from step")
            repeated = finished & (ran := set(re.findall(r"^(\S+) +Ran in", text, re.MULTILINE)))
            finished |= ran
            if repeated:
                self.fault(f"{log.name}: ran again though finished: {', '.join(sorted(repeated))}")
            self.check_end(log.name, text, status, stopped, wounded)
            if status == 0 or (abandon and not quota):
                if self.records and not self.records[-1].next:
                    self.records[-1].next = time.monotonic() - self.struck
                return
            if not stopped and not wounded:
                self.fault(f"{log.name}: a run that nobody killed ended with status {status}:\n{text[-3000:]}")
                return

    def close_record(self, record: Record) -> None:
        now = time.monotonic()
        if self.records and not self.records[-1].next:
            self.records[-1].next = now - self.struck
        self.struck = now
        self.records.append(record)

    def strike(self, kill: Kill, flow: subprocess.Popen[bytes], started: float) -> Record | None:
        """Wait for the kill's moment and carry it out; None where the flow ended before."""
        start = time.monotonic()

        def going() -> bool:
            if time.monotonic() - start > LONGEST:
                self.fault(f"{kill}: the flow hangs")
                flow.kill()
            return flow.poll() is None

        if kill.moment == "random":
            is_due: Callable[[], bool] = lambda: time.monotonic() >= start + kill.delay  # noqa: E731
        else:
            is_due = WINDOWS[kill.moment](self.workspace)
        while not is_due():
            if not going():
                return None
            time.sleep(0.05 if kill.moment in ("random", "push", "start") else 0.004)
        if kill.moment != "random":
            time.sleep(max(0.0, kill.delay - (time.monotonic() - started if kill.moment == "start" else 0)))
        while going():
            processes = self.workspace.processes()
            victims = [p for p in processes if kill.victim == "all" or p.role == kill.victim]
            if not victims:
                time.sleep(0.05)
                continue
            if kill.victim != "all":
                victims = [random.Random(kill.number).choice(victims)]
            killed = 0
            for victim in victims:
                try:
                    os.kill(victim.pid, kill.signal)
                    killed += 1
                except ProcessLookupError:
                    continue
            if not killed:
                continue
            stages_hit = {victim.stage for victim in victims} - {""}
            working = [p for p in processes if p.role == "stage" and (kill.victim in ("flow", "all") or p.pid == victims[0].pid)]
            at_work = {p.stage for p in processes if p.role == "dvc"} if kill.victim in ("flow", "all") else stages_hit
            self.say(f"{kill}: after {time.monotonic() - started:.1f} s, at work: {', '.join(sorted(at_work)) or 'no stage'}")
            return Record(kill, tuple(sorted(at_work)), sum(p.age for p in working))
        return None

    def wait(self, flow: subprocess.Popen[bytes], stopped: Kill | None) -> int:
        """The flow's status; a fault where it does not end, or leaves a process."""
        start = time.monotonic()
        try:
            status = flow.wait(30 if stopped else LONGEST)
        except subprocess.TimeoutExpired:
            self.fault(f"{stopped}: the flow keeps running: {self.workspace.processes()}")
            flow.kill()
            status = flow.wait()
        if stopped:
            self.endings.append(time.monotonic() - start)
            if self.endings[-1] > END_SECONDS:
                self.fault(f"{stopped}: the flow took {self.endings[-1]:.1f} s to end")
        start = time.monotonic()
        while remaining := self.workspace.processes():
            # A stage that was importing when all about it were killed ends when it has imported.
            if time.monotonic() > start + (STARTING_SECONDS if {p.role for p in remaining} == {"stage"} else ORPHAN_SECONDS):
                commands = [Path(f"/proc/{p.pid}/cmdline").read_bytes().replace(b"\0", b" ") for p in remaining]
                self.fault(f"{stopped}: left behind: {remaining} {commands}")
                for process in remaining:
                    os.kill(process.pid, signal.SIGKILL)
                break
            time.sleep(0.02)
        return status

    def check_end(self, name: str, text: str, status: int, stopped: Kill | None, wounded: int) -> None:
        if stopped and status != 0:
            expected = {-stopped.signal} if stopped.signal == signal.SIGKILL else {128 + stopped.signal}
            has_summary = re.search(r"^executed \d+, cached", text, re.MULTILINE)
            if "\n" not in text or stopped.moment == "start" or has_summary:  # Python's own end: nothing to stop yet, or any more
                expected |= {-stopped.signal, 130}
            if status not in expected:
                self.fault(f"{name}: {stopped}: status {status}\n{text[-2500:]}")
            if stopped.signal != signal.SIGKILL and status > 0 and len(re.findall(r"^retemper: stopped", text, re.MULTILINE)) != 1:
                self.fault(f"{name}: {stopped}: does not say once that it stopped:\n{text[-1500:]}")
        elif wounded and status not in (0, 1):
            self.fault(f"{name}: status {status} after {wounded} kills of a part\n{text[-2500:]}")
        if wounded and not stopped and status == 1:
            problems = re.findall(r"^retemper: (?!warning)(.*)$", text, re.MULTILINE)
            if not 1 <= len(problems) <= wounded:
                self.fault(f"{name}: {wounded} kills of a part, and said: {problems}\n{text[-2500:]}")
            self.say(f"   said: {problems}")
        for traceback in re.finditer(r"^(\S+ +\| )?Traceback", text, re.MULTILINE):
            early = not traceback[1] and stopped and stopped.moment == "start"  # Python's own, of a flow that only starts
            if not (early and "KeyboardInterrupt" in text[traceback.start() :]):
                self.fault(f"{name}: a traceback ({stopped}):\n{text[max(0, traceback.start() - 300) : traceback.start() + 2500]}")

    def compare(self, outs: dict[str, dict[str, str]], files: set[str], settings: list[str]) -> None:
        """What must be the same as without kills."""
        own_outs = self.workspace.outs()
        if self.targets:
            if missing := set(self.targets) - set(own_outs):
                self.fault(f"no outs of {', '.join(sorted(missing))}")
            outs = {name: outs[name] for name in own_outs}
        for stage in sorted(own_outs.keys() | outs.keys()):
            for path in sorted(own_outs.get(stage, {}).keys() | outs.get(stage, {}).keys()):
                if own_outs.get(stage, {}).get(path) != outs.get(stage, {}).get(path):
                    self.fault(f"{stage}: {path} is not that of the undisturbed run")
        extra = self.workspace.files() - files - {".dvc/config.local"}  # our remote
        if litter := sorted(name for name in extra if not name.startswith(".retemper/scratch/")):
            self.fault(f"litter: {litter}")
        for kind in self.workspace.folder.glob(".retemper/scratch/*"):  # of runs with changed parameters, never finished
            if len(list(kind.iterdir())) > KEPT:
                self.fault(f"litter: too many unfinished works in {kind}")
        for line in self.workspace.faulty_objects():
            self.fault(f"cache: {line}")
        log = self.workspace.folder.parent / "again.log"
        flow = self.workspace.start(settings, log, self.targets)
        if (status := flow.wait(LONGEST)) or "executed 0" not in log.read_text():
            self.fault(f"a run after success: status {status}\n{log.read_text()[-1500:]}")
        self.say(f"compared {sum(map(len, outs.values()))} outs of {len(outs)} stages")


def undisturbed(workspace: Workspace, settings: list[str], remembered: Path) -> tuple[dict[str, dict[str, str]], set[str]]:
    """Outs and files of a run that nobody kills; remembered in a file, as it costs minutes."""
    if not remembered.exists():
        log = workspace.folder.parent / "undisturbed.log"
        if status := workspace.start(settings, log).wait(2 * LONGEST):
            raise SystemExit(f"the undisturbed run ended with status {status}:\n{log.read_text()[-3000:]}")
        remembered.write_text(json.dumps({"outs": workspace.outs(), "files": sorted(workspace.files())}))
    record = json.loads(remembered.read_text())
    return record["outs"], set(record["files"])


def table(records: list[Record]) -> str:
    """Victim x signal x stage."""
    rows: dict[tuple[str, str, str], list[Record]] = defaultdict(list)
    for record in records:
        stage = "+".join(dict.fromkeys(name.partition("@")[0] for name in record.stages)) or "(start or end)"
        rows[record.kill.victim, NAMED[record.kill.signal], stage].append(record)
    lines = ["| victim | signal | at work | kills | s to the next kill or the end | s of work lost |", "|---|---|---|---:|---:|---:|"]
    for (victim, number, stage), group in sorted(rows.items()):
        mean = sum(record.next for record in group) / len(group)
        lines.append(
            f"| {victim} | {number} | {stage} | {len(group)} | {mean:.1f} | {sum(record.lost for record in group) / len(group):.1f} |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--per-pipeline", type=int, default=20, help="kills of one pipeline, at most (default: %(default)s)")
    parser.add_argument("--patience", type=float, default=8.0, help="longest wait before a random kill, s (default: %(default)s)")
    parser.add_argument("--folder", type=Path, help="where to work (default: a temporary one); an undisturbed run in it is used again")
    parser.add_argument("--dataset", help="SPEC of a tiny corpus (default: one of sixty documents is written)")
    parser.add_argument("--reference", type=Path, help="a workspace where an undisturbed run of --dataset is finished; one pipeline only")
    parser.add_argument("--until", nargs="+", default=[], metavar="STAGE", help="stages that a pipeline ends with (default: the report)")
    parser.add_argument("--own-server", action="store_true", help="let every run start a Prefect server of its own, which takes longer")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job would pass on that it is ignored
    folder = options.folder or Path(tempfile.mkdtemp(prefix="kills-"))
    folder.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - start:7.1f} {text}", flush=True)

    dataset = options.dataset or write_corpus(folder / "corpus")
    settings = [] if options.reference else [*LONGER, *BACK]
    if options.reference:
        reference = Workspace(options.reference, dataset)
        expected = reference.outs(), reference.files()
    else:
        reference = Workspace(folder / "reference", dataset)
        expected = undisturbed(reference, settings, folder / "undisturbed.json")
    say("the undisturbed run is done")
    shutil.rmtree(folder / "killed", ignore_errors=True)
    workspace = Workspace(folder / "killed", dataset)
    if options.reference:
        shutil.copy(options.reference / "params.yaml", workspace.folder / "params.yaml")
    (workspace.folder / "runtime.yaml").write_text("checkpoint_seconds: 0.1\n")  # something to resume from even here
    harness = Harness(workspace, say, options.until)
    kills = (draw(options.seed, number, options.patience) for number in count(1))
    cycle, server, url = 0, None, os.environ.get("PREFECT_API_URL")
    if not options.own_server:
        server = None if url else start_server(folder)
        workspace.environment["PREFECT_API_URL"] = url or server.stdout.readline().strip()
    while len(harness.records) < options.kills and cycle < 2 * options.kills:
        remaining = options.kills - len(harness.records)
        push = cycle % 2 == 1
        remote(workspace, folder / "remote" if push else None)
        if cycle:
            for forgotten in (".dvc/cache/runs", ".retemper/shards"):  # or nothing would run
                shutil.rmtree(workspace.folder / forgotten, ignore_errors=True)
            (workspace.folder / "dvc.lock").unlink(missing_ok=True)
            say(f"changed: {' '.join(CHANGED)}")
            harness.pipeline([*LONGER, *CHANGED], kills, min(6, remaining), push=False, abandon=True)
        say(f"pipeline {cycle}{': pushed to a remote' if push else ''}")
        harness.pipeline(settings, kills, min(options.per_pipeline, options.kills - len(harness.records)), push)
        harness.compare(*expected, settings)
        cycle += 1
        if options.reference:
            break
    say(f"{len(harness.records)} kills of {cycle} pipelines, {len(harness.faults)} faults, {harness.resumed} trainings resumed;")
    endings = sorted(harness.endings) or [0.0]
    say(f"a flow that was stopped or killed had ended after {median(endings):.1f} s (median), {endings[-1]:.1f} s (most)")
    print(table(harness.records))
    if server:
        server.kill()  # what it started ends with it
    if not options.folder and not harness.faults:
        shutil.rmtree(folder)
    return 1 if harness.faults or not harness.records else 0


if __name__ == "__main__":
    raise SystemExit(main())
