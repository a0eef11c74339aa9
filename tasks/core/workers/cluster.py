"""Workers of engine ray: actors of a Ray cluster, each with a GPU or some CPU threads of its own; if one is lost, another does its piece.

Actors and not tasks, because a process keeps the GPU that CUDA saw first, while Ray may give its next task another one.

The project's folder is on a file system that every node sees under the same path: workers read inputs and leave large results
there, so no vectors pass through Ray's object store. Before the work, every node must show that it sees the folder and has the
same code and libraries; the stage then compares their hardware (`agreed`).
"""

import logging
import os
import secrets
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import tasks
from tasks.core.errors import Invalid, Unavailable, UserError
from tasks.core.files import write_text
from tasks.core.machine.devices import gpu_kinds, usable_gpus
from tasks.core.params.runtime import RUNTIME_FILE, Runtime, read_runtime
from tasks.core.stage.code import Reader
from tasks.core.stage.entry import RECORD
from tasks.core.stage.scratch import ROOT, libraries, work_digest
from tasks.core.workers.attempts import AHEAD, Called, Outcome, Raised, Run, attempt, become_worker, result_of
from tasks.core.workers.cluster_crew import Crew, workers_lost

Piece = TypeVar("Piece")
Result = TypeVar("Result")
CONNECT_SECONDS = 10.0
ROOM_SECONDS = 120.0  # for a lost node to come back, or for another in its place
NOTHING = {"num_cpus": 0, "num_gpus": 0}  # resources of a task that only looks
ADDRESS = "RAY_ADDRESS"  # environment: what `auto` stands for
TOKEN = "give the run the cluster's token, and set RAY_AUTH_MODE=token in its environment (docs/cluster.md)"
# environment of the stage that its workers get
PASSED = ("HF_", "TRANSFORMERS_", "TOKENIZERS_", "CUBLAS_", "GLOO_", "NCCL_", "TORCH_NCCL_", "PYTORCH_", "FI_", "UCX_")


class Session(NamedTuple):
    """What a worker must find on its node: the project's folder, a file that this run just wrote there, and the same code and libraries."""

    project: str
    mark: str
    word: str
    code: str


class Node(NamedTuple):
    """A node that can hold workers, and how many."""

    name: str
    host: str
    places: int


@contextmanager
def open_cluster(runtime: Runtime) -> Iterator["Cluster"]:
    """The workers of the cluster at `address`. UserError if it cannot be reached, or if its nodes cannot work together."""
    ray = _connected(runtime.address)
    mark = ROOT / "scratch" / "workers" / f"{secrets.token_hex(8)}.txt"
    try:
        session = Session(str(Path.cwd()), str(mark), secrets.token_hex(16), code_and_libraries())
        write_text(mark, session.word)
        worker_runtime, nodes = place_workers(runtime, ray.nodes())
        cluster = Cluster(ray, worker_runtime, nodes, session)
        cluster.refuse_strangers()
        yield cluster
    finally:
        mark.unlink(missing_ok=True)
        ray.shutdown()


@contextmanager
def open_cpus() -> Iterator["Cluster"]:
    """All CPUs of the cluster of runtime.yaml, one thread for each worker."""
    with open_cluster(read_runtime().model_copy(update={"device": "cpu", "threads": 1, "workers": "all"})) as cluster:
        yield cluster


def _connected(address: str) -> Any:
    """The module ray, connected to the cluster."""
    try:
        import ray
    except ImportError:
        raise Unavailable(
            where=f"{RUNTIME_FILE}: engine",
            found="ray, which is not installed",
            remedy="pip install -c constraints.txt 'retemper[ray]', or set engine: local",
        ) from None
    from ray._private.services import canonicalize_bootstrap_address_or_die
    from ray.exceptions import RayError

    remedy = "start one (ray start --head; docs/cluster.md), or set engine: local"
    try:
        if address == "auto":  # Ray would try for minutes to reach a cluster that is gone
            address = canonicalize_bootstrap_address_or_die(os.environ.get(ADDRESS) or address)
    except ConnectionError as error:
        found = f"no Ray cluster that this machine is part of ({str(error).splitlines()[0]})"
        raise Unavailable(where=f"{RUNTIME_FILE}: address", found=found, remedy=remedy) from None
    refuse_unreachable(address, remedy)
    os.environ[ADDRESS] = address  # which Ray prefers to its own argument
    environment = {name: value for name, value in os.environ.items() if name.startswith(PASSED) or name == RECORD}
    environment |= {"PYTHONPATH": str(Path(tasks.__file__).parents[1])}
    environment |= {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}  # a task without a GPU sees all of its node
    try:
        ray.init(address=address, runtime_env={"env_vars": environment}, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError, TimeoutError, RayError) as error:
        found = f"no Ray cluster of this version at {address} ({str(error).splitlines()[0]})"
        if refused_token(error):
            found, remedy = f"a Ray cluster at {address} that requires a token", TOKEN
        raise Unavailable(where=f"{RUNTIME_FILE}: address", found=found, remedy=remedy) from None
    return ray


def refused_token(error: BaseException | None) -> bool:
    """Whether a cluster refused us for lack of a token: Ray raises its own exception, or quotes it in the text of another."""
    while error is not None:
        if "AuthenticationError" in f"{type(error).__name__} {error}":
            return True
        error = error.__cause__ or error.__context__
    return False


def refuse_unreachable(address: str, remedy: str) -> None:
    """UserError unless something listens at `address`, HOST:PORT; Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in host:
        raise Invalid(where=f"{RUNTIME_FILE}: address", found=address, expected="auto or HOST:PORT, as ray start --head prints it")
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        found = f"nothing that answers at {address} ({error})"
        raise Unavailable(where=f"{RUNTIME_FILE}: address", found=found, remedy=remedy) from None


def place_workers(runtime: Runtime, listed: list[dict[str, Any]]) -> tuple[Runtime, list[Node]]:
    """The settings of each worker, and the nodes that can hold workers, from Ray's list of nodes. UserError if there are none.

    On a CPU each worker has `threads` threads: those of runtime.yaml, or all of the smallest node.
    """
    alive = [(node, node["Resources"]) for node in listed if node["Alive"]]
    gpus = [(node, int(resources["GPU"])) for node, resources in alive if resources.get("GPU", 0) >= 1]
    cpus = [(node, int(resources["CPU"])) for node, resources in alive if resources.get("CPU", 0) >= 1]
    if runtime.device.startswith("cuda:"):
        raise Invalid(where=f"{RUNTIME_FILE}: device", found=f"{runtime.device} with engine: ray", expected="auto, cuda, or cpu")
    if runtime.device != "cpu" and (gpus or runtime.device == "cuda"):
        device, threads = "cuda", runtime.threads or max(1, min((int(n["Resources"].get("CPU", 1)) // g for n, g in gpus), default=1))
        places = gpus
    else:
        device, threads = "cpu", runtime.threads or min((count for _, count in cpus), default=1)
        places = [(node, count // threads) for node, count in cpus]
    nodes = [Node(node["NodeID"], str(node["NodeManagerHostname"]), count) for node, count in places if count]
    if not nodes:
        wanted = "a GPU" if device == "cuda" else f"{threads} CPUs"
        raise Unavailable(
            where=f"{RUNTIME_FILE}: engine", found=f"no node of the Ray cluster with {wanted}", remedy="start one (ray start)"
        )
    return runtime.model_copy(update={"device": device, "threads": threads}), nodes


class Cluster:
    """The workers of a connected cluster: as many as runtime.yaml asks for, but no more than fit on `nodes`.

    `runtime`: the settings of each.
    """

    alone = False

    def __init__(self, ray: Any, runtime: Runtime, nodes: list[Node], session: Session) -> None:
        self.runtime, self.ray, self.session, self._nodes = runtime, ray, session, nodes
        if runtime.workers != "all" and self.count < runtime.workers:
            print(f"{RUNTIME_FILE}: workers: {runtime.workers}: the Ray cluster has room for {self.count}")
        self._device = {"num_gpus": 1, "num_cpus": 0} if runtime.device == "cuda" else {"num_gpus": 0, "num_cpus": runtime.threads}

    @property
    def count(self) -> int:
        places = sum(node.places for node in self._nodes)
        return places if self.runtime.workers == "all" else min(self.runtime.workers, places)

    def refuse_strangers(self) -> None:
        """UserError if a node does not see the project's folder, or has other code or libraries."""
        faults = [(host, fault) for host, fault in self._everywhere(_look, NOTHING, lambda _: (self.session,)) if fault]
        if faults:
            host, fault = faults[0]
            raise UserError(
                where=f"node {host} of the Ray cluster",
                found=fault,
                remedy=f"fix {len(faults)} of {len(self._nodes)} nodes (docs/cluster.md)",
            )

    def agreed(self, function: Callable[[], Result]) -> Result:
        references = [self.ray.put(Called(function))]
        gpu = self.runtime.device == "cuda"  # the process must end: Ray would give its next task another GPU
        settings = {**self._device, "max_retries": self.runtime.restarts, "max_calls": int(gpu)}
        outcomes = self._everywhere(_work, settings, lambda _: (self.session, references, 0))
        results: list[Result] = [result_of(outcome) for _, outcome in outcomes]
        if any(other != results[0] for other in results[1:]):
            details = "; ".join(f"{host}: {result}" for (host, _), result in zip(outcomes, results, strict=True))
            raise UserError(
                where="the Ray cluster", found=f"nodes that differ ({details})", expected="hardware of one kind", remedy="remove the others"
            )
        if gpu:
            self._refuse_other_gpus()
        return results[0]

    def _refuse_other_gpus(self) -> None:
        """UserError where the GPUs that workers may get are of several kinds; also looks at those in use."""
        references = [self.ray.put(_kinds)]
        outcomes = self._everywhere(_work, {**NOTHING, "max_calls": 1}, lambda node: (self.session, references, node.places))
        kinds = [(host, result_of(outcome)) for host, outcome in outcomes]
        if len({kind for _, names in kinds for kind in names}) > 1:
            details = "; ".join(f"{host}: {', '.join(names)}" for host, names in kinds)
            raise UserError(
                where="the Ray cluster",
                found=f"GPUs of several kinds ({details})",
                expected="one kind",
                remedy="choose those of each node with CUDA_VISIBLE_DEVICES where you start Ray",
            )

    def each(self, function: Callable[[Piece], Result], pieces: Iterable[Piece]) -> Iterator[Result]:
        run = Run(function, iter(pieces), AHEAD * self.count)
        work = (_work, self.session, [self.ray.put(function)])  # in a list: else Ray would load it again for each piece
        crew = Crew(self.ray, self._device, run, self.count, self.runtime.restarts, work)
        waited = 0.0
        try:
            while True:
                yield from run.ready()
                if not crew.give():
                    return
                if crew.hear(ROOM_SECONDS):
                    waited = 0.0
                else:
                    waited += ROOM_SECONDS
                    self._wait_on(1, ROOM_SECONDS, waited)
        finally:
            crew.end()

    @contextmanager
    def room(self, seconds: float) -> Iterator[Callable[[int], dict[str, Any]]]:
        """Reserve room for `count` tasks at once; yield a function from a task's number to Ray's settings for it.

        Waits as long as the nodes could hold the tasks. UserError if there are too few nodes for `seconds`.
        """
        from ray.util import placement_group, remove_placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        bundle = {"GPU": 1} if self.runtime.device == "cuda" else {"CPU": self.runtime.threads}
        group = placement_group([bundle] * self.count, strategy="PACK")
        try:
            waited = 0.0
            while not group.wait(seconds):
                waited += seconds
                self._wait_on(self.count, seconds, waited)
            yield lambda number: {
                **self._device,
                "scheduling_strategy": PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number),
            }
        finally:
            remove_placement_group(group)

    def _wait_on(self, count: int, seconds: float, waited: float) -> None:
        """Print how long we have waited for room for `count` workers. UserError if the current nodes, `seconds` later, are too few."""
        if (places := self._places()) < count:
            raise Unavailable(
                where="the Ray cluster",
                found=f"room for only {places} workers after waiting {seconds:.0f} s",
                expected=f"room for {count}",
                remedy=f"start a node, or set fewer workers ({RUNTIME_FILE}), and run again",
            )
        wanted = "a worker" if count == 1 else f"{count} workers at once"
        print(f"waiting for room on the Ray cluster for {wanted}: {waited:,.0f} s", flush=True)

    def _places(self) -> int:
        """How many workers the current nodes can hold."""
        try:
            return sum(node.places for node in place_workers(self.runtime, self.ray.nodes())[1])
        except UserError:
            return 0

    def _everywhere(
        self, function: Callable[..., Any], settings: dict[str, Any], arguments_of: Callable[[Node], tuple[Any, ...]]
    ) -> list[tuple[str, Any]]:
        """Call `function` on every node; return the results by host. Nodes that have just died, but that Ray still listed, are dropped."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        references = [
            self.ray.remote(**settings, scheduling_strategy=NodeAffinitySchedulingStrategy(node.name, soft=False))(function).remote(
                *arguments_of(node)
            )
            for node in self._nodes
        ]
        waited, pending = 0.0, references
        while pending := self.ray.wait(pending, num_returns=len(pending), timeout=ROOM_SECONDS)[1]:
            waited += ROOM_SECONDS
            print(f"waiting for {len(pending)} of {len(references)} nodes of the Ray cluster: {waited:,.0f} s", flush=True)
        outcomes = [self._fetch(ref) for ref in references]
        alive = {node["NodeID"] for node in self.ray.nodes() if node["Alive"]}
        answers = [
            (node, outcome)
            for node, outcome in zip(self._nodes, outcomes, strict=True)
            if node.name in alive or not isinstance(outcome, Raised)
        ]
        answers = answers or [*zip(self._nodes, outcomes, strict=True)]
        self._nodes = [node for node, _ in answers]
        return [(node.host, result_of(outcome) if isinstance(outcome, Raised) else outcome) for node, outcome in answers]

    def _fetch(self, reference: Any) -> Outcome:
        """A task's outcome; WorkersLost, as Raised, if it lost its worker or node too often."""
        from ray.exceptions import RayError, RayTaskError

        try:
            outcome: Outcome = self.ray.get(reference)
        except RayTaskError:  # of ours: a worker catches what its work raises
            raise
        except RayError as error:
            return Raised(workers_lost(error, self.runtime.restarts))
        return outcome


# What follows runs on the nodes.


@cache
def code_and_libraries() -> str:
    """One digest of the code of all stages and of the libraries that compute."""
    return work_digest(Reader(Path(tasks.__file__).parents[1]).stage_digests(), libraries())


def _look(session: Session) -> str:
    """What is wrong with this node; empty if nothing is."""
    project = Path(session.project)
    try:
        word = (project / session.mark).read_text(encoding="utf-8")
    except OSError as error:
        return f"no file {project / session.mark}, which this run just wrote ({error.strerror}), expected the same file system on all nodes"
    if word != session.word:
        return f"another file at {project / session.mark}, expected the same file system on all nodes"
    if code_and_libraries() != session.code:
        return "other code or other versions of numpy, torch, transformers, tokenizers, or faiss, expected those of the stage"
    return ""


@cache
def join_session(session: Session) -> str:
    """Make this process a worker of `session`; return what is wrong with its node, empty if nothing is."""
    if not (fault := _look(session)):
        os.chdir(session.project)
        become_worker()
    return fault


@lru_cache(maxsize=1)
def _function(reference: Any) -> Callable[[Any], Any]:
    """The function that this process applies to its pieces, kept with all that it has loaded."""
    import ray

    function: Callable[[Any], Any] = ray.get(reference)
    return function


def _work(session: Session, references: list[Any], piece: Any) -> Outcome:
    """Compute a piece in a worker."""
    if fault := join_session(session):
        return Raised(UserError(where=f"node {socket.gethostname()} of the Ray cluster", found=fault))
    return attempt(_function(references[0]), piece)


def _kinds(places: int) -> list[str]:
    """The kinds of GPUs that workers may get on this node."""
    return gpu_kinds(min(places, usable_gpus()))
