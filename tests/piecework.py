"""Functions of pieces of work, for workers: processes import them by name."""

import os
import signal
import sys
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tasks.core.errors import Missing
from tasks.core.files import new_file

FIRST: dict[str, str] = {}


@dataclass(frozen=True)
class Work:
    """Squares numbers, and does what its settings say at some of them. Each attempt leaves a line in the file `log`."""

    log: Path
    seconds: float = 0.0
    killed: tuple[int, ...] = ()  # kill the worker at these, at the first attempt only
    always: bool = False  # at every attempt
    wrong: tuple[int, ...] = ()  # a user's error
    broken: tuple[int, ...] = ()  # a bug
    size: int = 0  # bytes of each result

    @cached_property
    def loaded(self) -> int:
        """What a worker loads once: its own process."""
        with self.log.with_suffix(".loads").open("a") as handle:
            handle.write(f"{os.getpid()}\n")
        return os.getpid()

    def __call__(self, number: int | tuple[int, bytes]) -> tuple[int, bytes]:
        number = number if isinstance(number, int) else number[0]
        already_tried = f"\n{number} " in f"\n{self.log.read_text()}" if self.log.exists() else False
        with self.log.open("a") as handle:
            handle.write(f"{number} {self.loaded}\n")
        if number in self.killed and (self.always or not already_tried):
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(self.seconds)
        if number in self.wrong:
            raise Missing(where=f"file {number}", found="nothing", expected="a number", remedy="write one")
        if number in self.broken:
            raise LookupError(f"no {number}")
        return number**2, b"x" * self.size

    def attempts(self) -> list[int]:
        return [int(line.split()[0]) for line in self.log.read_text().splitlines()]


@dataclass(frozen=True)
class Facts:
    """What workers may disagree on: `place` is a file that counts the calls."""

    place: Path
    different: bool = False

    def __call__(self) -> str:
        with self.place.open("a") as handle:
            handle.write("x")
        time.sleep(0.5)
        return f"kind {os.getpid() if self.different else 0}"


def first_gpu() -> str:
    """The GPU of this process: what was visible when it first asked, as CUDA has it."""
    return FIRST.setdefault("gpu", os.environ["CUDA_VISIBLE_DEVICES"])


def process_and_gpus(_: int) -> tuple[int, str, str]:
    """This process, its GPU, and the GPU that is visible now."""
    first = first_gpu()
    time.sleep(0.1)
    return os.getpid(), first, os.environ["CUDA_VISIBLE_DEVICES"]


def one_kind(count: int) -> list[str]:
    """GPUs of one kind."""
    return ["one kind"] * count


def two_kinds(count: int) -> list[str]:
    """All GPUs that this process sees are of different kinds."""
    return [f"kind {gpu}" for gpu in os.environ["CUDA_VISIBLE_DEVICES"].split(",")][:count]


def run_two_workers(folder: Path) -> None:
    """A stage with two workers, which leave their numbers in `folder` and never end."""
    from tasks.core.params.runtime import Runtime
    from tasks.core.workers.each import open_workers

    with open_workers(Runtime(device="cpu", workers=2, threads=1)) as workers:
        list(workers.each(linger, [folder, folder]))


def linger(folder: Path) -> None:
    (folder / str(os.getpid())).touch()
    time.sleep(600)


def temporary_name(path: Path) -> str:
    """Write a file; return the name that it has until it is complete."""
    with new_file(path) as temporary:
        temporary.touch()
    return temporary.name


if __name__ == "__main__":
    run_two_workers(Path(sys.argv[1]))
