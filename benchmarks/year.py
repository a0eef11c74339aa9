"""A year of weekly retrainings in about an hour: real stages on a small corpus, a real schedule and its server, a search server under load.

    python benchmarks/year.py [--weeks 52] [--seed 1] [--folder NEW_FOLDER]

Each week may bring a batch (benchmarks/weeks.py): good, empty, duplicated, leaking, malformed, from another domain, or poisoned, with
judgments that no check of data can see through. Some runs are killed half-way, twice a year somebody takes a champion back. Every week is a
run of the deployment, as a click on Prefect's page starts it. What must hold is checked each week against what the batches were: what was
kept out, how the run ended, which champion there is. `retemper serve` answers all year; afterwards its answers are held against
sentence-transformers and an exhaustive search.

No champion's true quality is known to the pipeline: 1,000 further queries, which no batch ever has, measure each at the end. That of every
champion must be at most the margin below the best one before it. Poisoned batches are removed from the inbox after their week.
Exit status 1 where anything did not hold. Linux only (/proc).
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from weeks import KEPT_OUT, World, damage, ndcg, plan
from workspace import Workspace

from flows.parameters import edit
from flows.promotion.records import Promotion

NAME = "year"
RECIPE = {
    **{section: {} for section in ("pretrain", "mine", "adore", "fuse")},
    "rounds": {"warmup": {"init": "base", "negatives": "bm25", "lr": 3e-4, "epochs": 3.0}},
    "encoder.source": "package:cognition/model",
    "encode.precision": "fp32",
    "dataset.source": "beir:../source",
    "report.baselines": ["bm25"],
}
PATIENCE = 1800.0  # seconds that a retraining may take
ENDS = {"good": {"Promoted", "Refused"}, "poisoned": {"Refused"}}  # how the run of such a week may end; others change nothing
AFTER = {"poisoned": {"Refused"}, "rollback": {"Refused", "Promoted"}}  # or compare the last candidate again
AUTHOR = {f"GIT_{role}_{what}": "year@localhost" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


@dataclass
class Load:
    """Searches without end, from threads of their own: statuses, seconds, and the models that answered."""

    url: str
    queries: list[str]
    statuses: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    models: set[str] = field(default_factory=set)
    ended: threading.Event = field(default_factory=threading.Event)

    def ask(self, number: int) -> None:
        draw = random.Random(number)
        with httpx.Client(base_url=self.url, timeout=60) as client:
            while not self.ended.wait(draw.expovariate(2.0)):
                start = time.perf_counter()
                try:
                    answer = client.get("/search", params={"q": draw.choice(self.queries)})
                    self.models.add(answer.json().get("model", "no model"))
                    self.statuses[str(answer.status_code)] += 1
                except (httpx.HTTPError, ValueError) as error:
                    self.statuses[type(error).__name__] += 1
                self.seconds.append(time.perf_counter() - start)


class Year:
    """The project, its schedule and its search server."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.project = folder, Workspace(folder / "project", "beir:../source")
        self.environment = self.project.environment | AUTHOR
        self.problems: list[str] = []
        self.rolled_back: set[int] = set()  # champions that a person went back to
        self.url = ""

    def call(self, *words: str, status: int = 0) -> str:
        """The output of a command of ours."""
        command = [sys.executable, "-m", "flows.cli", *words]
        process = subprocess.run(command, cwd=self.project.folder, env=self.environment, capture_output=True, text=True, check=False)
        if process.returncode != status:
            raise SystemExit(f"{' '.join(words)}: status {process.returncode}\n{process.stdout[-2000:]}\n{process.stderr[-2000:]}")
        return process.stdout

    def git(self, *words: str) -> str:
        command = ["git", *words]
        return subprocess.run(command, cwd=self.project.folder, env=self.environment, capture_output=True, text=True, check=True).stdout

    def must(self, holds: bool, problem: str) -> None:
        if not holds:
            self.problems.append(problem)
            print(f"    WRONG: {problem}", flush=True)

    @contextmanager
    def started(self, log: str, *words: str) -> Iterator[Path]:
        """A command of ours that runs until it is told to end; its log."""
        path = self.folder / log
        with path.open("w") as out:
            command = [sys.executable, "-m", "flows.cli", *words]
            process = subprocess.Popen(command, cwd=self.project.folder, env=self.environment, stdout=out, stderr=subprocess.STDOUT)
        try:
            yield path
        finally:
            process.send_signal(signal.SIGTERM)
            self.must(process.wait(timeout=120) == 0, f"{words[0]} ended with status {process.returncode}")

    def champions(self) -> list[int]:
        return sorted(int(tag.rpartition("/")[2]) for tag in self.git("tag", "--list", "champion/*").split())

    def ask(self, path: str, body: Any = None) -> Any:
        """An answer of Prefect's API; asked again while the server is busy, as Prefect's own client does."""
        for _ in wait(60):
            answer = httpx.request("GET" if body is None else "POST", f"{self.url}{path}", json=body, timeout=120)
            if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE:
                break
        answer.raise_for_status()
        return answer.json()

    def retrain(self, kill_after: float | None = None) -> tuple[str, str]:
        """One run of the deployment: name and message of its last state. `kill_after`: seconds from its start to its kill."""
        deployment = self.ask(f"/deployments/name/retemper-retraining/{NAME}")["id"]
        run = self.ask(f"/deployments/{deployment}/create_flow_run", {})["id"]
        at_work, running_since = self.project.folder / ".retemper/at_work.json", 0.0
        for _ in wait(PATIENCE):
            state = self.ask(f"/flow_runs/{run}")["state"]
            if state["type"] in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED"):
                return str(state["name"]), str(state["message"] or "")
            running_since = running_since or (time.monotonic() if at_work.exists() and state["type"] == "RUNNING" else 0.0)
            if kill_after is not None and running_since and time.monotonic() - running_since > kill_after:
                kill_run()
                kill_after = None
        return "Never ended", ""


def wait(seconds: float, every: float = 0.5) -> Iterator[None]:
    """Again and again, until the time has passed."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        yield
        time.sleep(every)


def kill_run() -> None:
    """SIGKILL to the process of the scheduled run (the runner's child); what it started must end by itself."""
    parents = {}
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().decode().split("\0")
            parents[int(entry.name)] = (words, int((entry / "stat").read_text().rpartition(")")[2].split()[1]))
        except (OSError, ValueError):
            continue
    runners = {pid for pid, (words, _) in parents.items() if words[1:3] == ["-m", "flows.scheduling.schedule"]}
    for pid, (_, parent) in parents.items():
        if parent in runners:
            os.kill(pid, signal.SIGKILL)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weeks", type=int, default=52)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no week after this many minutes")
    args = parser.parse_args()
    folder = (args.folder or Path(tempfile.mkdtemp(prefix="year-"))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    year, world = Year(folder), World(args.seed)
    world.first().write(folder / "source")
    (folder / "inbox").mkdir()
    edit.apply([f"{key}={json.dumps(value)}" for key, value in RECIPE.items()], year.project.folder / "params.yaml", lambda _: None)
    (year.project.folder / "retraining.yaml").write_text(json.dumps({"intake": {"inbox": "../inbox", "gate": {"shift": 0.75}}}))
    year.git("add", "--all")
    year.git("commit", "--quiet", "--message", "The project of a year")
    with year.started("schedule.log", "schedule", "--cron", "0 3 1 1 *", "--name", NAME) as log:
        page_line = next(line for _ in wait(400) for line in log.read_text().splitlines() if line.startswith("Prefect's page: "))
        year.url = page_line.split()[-1] + "/api"
        deployment_url = f"{year.url}/deployments/name/retemper-retraining/{NAME}"
        next(True for _ in wait(400) if httpx.get(deployment_url, timeout=60).status_code == 200)
        week_count = weeks(year, world, plan(args.seed, args.weeks), random.Random(args.seed + 1), until=start + 60 * args.minutes)
    print(f"{week_count} weeks in {(time.monotonic() - start) / 60:.0f} min; {len(year.problems)} things did not hold; {folder}")
    for problem in year.problems:
        print(f"  {problem}")
    return 1 if year.problems else 0


def weeks(year: Year, world: World, kinds: list[str], draw: random.Random, *, until: float) -> int:
    """Every week, then what they add up to; how many there were."""
    quarantine = year.project.folder / ".retemper/quarantine"
    outcomes: Counter[tuple[str, str]] = Counter()
    kills = set(draw.sample(range(1, len(kinds)), max(1, len(kinds) // 7)))
    rollbacks = {len(kinds) * 2 // 5, len(kinds) * 4 // 5}
    kept_out: set[str] = set()
    reason = ""  # what makes a week without new data compare all the same
    with_server: Any = None
    week = 0
    for week, kind in enumerate(kinds):
        if time.monotonic() > until:
            week -= 1
            break
        before, name = year.champions(), f"{week:03}"
        if data := world.batch(kind, week):
            data.write(year.folder / "inbox" / name)
            if kind == "malformed":
                damage(year.folder / "inbox" / name)
        note = ""
        if week in kills:
            delay = draw.uniform(1, 20)
            state, message = year.retrain(kill_after=delay)
            note = f", {state.lower()} after {delay:.0f} s"
            if state == "Crashed":
                year.must(year.champions() == before, f"week {week}: the kill changed the champion")
                state, message = year.retrain()
        else:
            state, message = year.retrain()
        champions = year.champions()
        outcomes[kind, state] += 1
        print(f"week {week:2} {kind:10} {state}{note}: champion/{champions[-1] if champions else 0}; {message[:150]}", flush=True)
        allowed = {"Promoted"} if week == 0 else ENDS.get(kind, {"Unchanged"} | AFTER.get(reason, set()))
        year.must(state in allowed, f"week {week}: {kind} ended as {state}, not as {' or '.join(sorted(allowed))}: {message}")
        year.must(
            len(champions) - len(before) == (state == "Promoted"), f"week {week}: {state}, yet champions went from {before} to {champions}"
        )
        kept_out |= {name} if kind in KEPT_OUT else set()
        in_quarantine = {path.stem for path in quarantine.glob("*.json")}
        year.must(in_quarantine == kept_out, f"week {week}: in quarantine are {sorted(in_quarantine)}, not {sorted(kept_out)}")
        reason = kind if kind == "poisoned" else reason if state == "Unchanged" else ""
        if kind == "poisoned":
            (year.folder / "inbox" / name).rename(year.folder / "inbox" / f".{name}")
        if len(champions) > len(before):
            year.call("champion", "export", str(year.folder / f"export-{champions[-1]}"))
        if week == 0:
            queries = [entry.query for entry in world.dev] + [f"{entry.title} history" for entry in world.dev]
            with_server = serve(year, queries)
            server = with_server.__enter__()
        if week in rollbacks and len(champions) > 1:
            year.call("champion", "rollback")
            champions = year.champions()
            year.rolled_back.add(champions[-1])
            year.call("champion", "export", str(year.folder / f"export-{champions[-1]}"))
            print(
                f"        rolled back: champion/{champions[-1]} is {json.loads(year.call('champion', 'history', '--json'))[-1]['reason']}",
                flush=True,
            )
            reason = "rollback"
        expected = f"champion/{champions[-1]} "
        year.must(any(server().startswith(expected) for _ in wait(60)), f"week {week}: {server()} is served, not {expected}")
    with_server.__exit__(None, None, None)
    add_up(year, world, outcomes)
    return week + 1


@contextmanager
def serve(year: Year, queries: list[str]) -> Iterator[Callable[[], str]]:
    """The search server under load; a function that says which model it serves."""
    with year.started("serve.log", "serve", "--port", "0") as log:
        line = next(line for _ in wait(120) for line in log.read_text().splitlines() if "http://" in line)
        url = "http://" + line.split("http://")[1].split()[0].rstrip("/,;")
        load = Load(url, queries)
        threads = [threading.Thread(target=load.ask, args=(number,), daemon=True) for number in range(4)]
        for thread in threads:
            thread.start()
        yield lambda: str(httpx.get(f"{url}/health", timeout=60).json()["model"])
        load.ended.set()
        for thread in threads:
            thread.join()
        p50, p99 = np.percentile(load.seconds, [50, 99])
        latency = f"p50 {p50 * 1000:.0f} ms, p99 {p99 * 1000:.0f} ms"
        print(f"search: {len(load.seconds):,} requests {dict(load.statuses)}, {latency}, {len(load.models)} models")
        year.must(set(load.statuses) == {"200"}, f"the search server: {dict(load.statuses)}")
        hits = {query: httpx.get(f"{url}/search", params={"q": query}, timeout=60).json() for query in queries[:50]}
        check_answers(year, hits)


def check_answers(year: Year, hits: dict[str, Any]) -> None:
    """The server's documents and scores are those of sentence-transformers over the last export's texts."""
    from sentence_transformers import SentenceTransformer

    export = year.folder / f"export-{year.champions()[-1]}"
    model = SentenceTransformer(str(export / "encoder"), device="cpu")
    settings = json.loads((export / "champion.json").read_text())
    import pyarrow.parquet as pq

    year.call("champion", "export", str(year.folder / "whole"), "--with-documents")
    table = pq.read_table(year.folder / "whole/documents.parquet").to_pydict()
    model.max_seq_length = 64
    documents = model.encode(table["text"], show_progress_bar=False)
    model.max_seq_length = 32
    scores = model.encode(list(hits), show_progress_bar=False) @ documents.T
    mismatches = 0
    for row, answer in zip(scores, hits.values(), strict=True):
        best = np.sort(row)[::-1][:10]
        mismatches += not np.allclose([hit["score"] for hit in answer["hits"]], best, rtol=1e-3, atol=1e-3)
    year.must(not mismatches, f"{mismatches} of {len(hits)} answers are not those of sentence-transformers ({settings['model']})")


def add_up(year: Year, world: World, outcomes: Counter[tuple[str, str]]) -> None:
    """The champions' true quality, and how the weeks ended."""
    from sentence_transformers import SentenceTransformer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    for (kind, state), count in sorted(outcomes.items()):
        print(f"{kind:10} {state:10} {count}")
    texts = [entry.text for entry in world.known]
    ids = [f"d{entry.number}" for entry in world.known]
    best, margin = 0.0, Promotion().margin
    first = None
    for number in year.champions():
        model = SentenceTransformer(str(year.folder / f"export-{number}/encoder"), device="cpu")
        model.max_seq_length = 64
        documents = model.encode(texts, show_progress_bar=False)
        scores = model.encode(list(world.truth), show_progress_bar=False) @ documents.T
        ranked = [[ids[place] for place in row] for row in np.argsort(-scores, axis=1)[:, :10]]
        quality = float(np.mean(ndcg(ranked, list(world.truth.values()))))
        first = first or quality
        comparison = f" ({quality - first:+.4f} to the anchor, {quality - best:+.4f} to the best before it)" if best else ", the anchor"
        print(f"champion/{number}: true nDCG@10 {quality:.4f}{comparison}")
        was_restored = number in year.rolled_back
        year.must(was_restored or quality >= best - margin, f"champion/{number} is {best - quality:.4f} below the best before it")
        best = max(best, quality)
    lines = json.loads(year.call("champion", "history", "--json"))
    states = year.ask("/flow_runs/filter", {"flows": {"name": {"any_": ["retemper-retraining"]}}, "limit": 200})
    page = Counter(run["state"]["name"] for run in states if run["state"]["type"] != "SCHEDULED")
    print(f"history: {dict(Counter(line['result'] for line in lines))}; Prefect's page: {dict(page)}")


if __name__ == "__main__":
    raise SystemExit(main())
