"""Write many rounds into params.yaml at once: ANCE's refreshes, with any lag between training and mining."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from flows.parameters.checks import PARAMS, check
from flows.parameters.edit import apply
from tasks.core.errors import UserError
from tasks.core.params.sections import read_yaml

Optimizer = Literal["continue", "moments", "fresh"]
SEED = 42  # the default of a round (tasks.train.params)


@dataclass(frozen=True)
class Ance:
    """ANCE as rounds PREFIX1 ... PREFIXn (arXiv:2007.00808, section 4): each starts from the previous one.

    Round k takes its negatives from round k - 1 - lag. Lag 0: training waits until the previous round is mined. Lag 1: it
    trains while that round is encoded and mined, like the paper's Trainer and Inferencer in parallel. The first rounds, with
    no round that far back, take theirs from `negatives`.

    The released code changes only the data at a refresh, so rounds keep the optimizer's moments by default and, if `steps`
    is given, share one schedule.
    """

    n: int
    lag: int
    init: str
    negatives: str
    steps: int | None = None  # of a round: the refresh interval
    prefix: str = "ance"
    optimizer: Optimizer | None = None  # optimizer_from of rounds 2 to n; None: continue if `steps` is given, else moments
    search: str = "embeddings"
    settings: Sequence[str] = field(default=())  # KEY=VALUE, of every round

    @property
    def effective_optimizer(self) -> Optimizer:
        """`optimizer`, with its default."""
        return self.optimizer or ("moments" if self.steps is None else "continue")

    def source(self, k: int) -> str:
        """The source of round k's negatives."""
        return f"{self.prefix}{k - 1 - self.lag}" if k - 1 - self.lag >= 1 else self.negatives

    def assignments(self, rounds: Mapping[str, Any], sources: Sequence[str]) -> list[str]:
        """The edits of params.yaml, in `--set` form. `rounds` and `sources` (of negatives) are those that exist already.

        The same seed gives the same queries in the same order, so each round with its own schedule gets a seed that no other round has.
        Rounds that continue one schedule are one long training in one order, with one seed.
        """
        edits = []
        seeds = [entry.get("seed", SEED) for entry in rounds.values() if isinstance(entry, dict)]
        first_seed = 1 + max((seed for seed in seeds if isinstance(seed, int)), default=SEED - 1)
        for k in range(1, self.n + 1):
            init = self.init if k == 1 else f"{self.prefix}{k - 1}"
            entry = {"init": init, "negatives": self.source(k), "loss": "nll", "in_batch": "false", "hard_negatives": "1"}
            entry |= {"steps": str(self.steps)} if self.steps is not None else {}
            entry |= {"optimizer_from": self.effective_optimizer} if k > 1 and self.effective_optimizer != "fresh" else {}
            entry |= {"schedule_steps": str((self.steps or 0) * self.n)} if self.effective_optimizer == "continue" else {}
            entry["seed"] = str(first_seed if self.effective_optimizer == "continue" else first_seed + k - 1)
            for setting in self.settings:
                key, equals, value = setting.partition("=")
                if not (equals and key.strip() and value.strip()):
                    raise UserError(f"--set {setting}: expected key=value of a round, such as lr=1e-5")
                entry[key.strip()] = value.strip()
            edits.append(f"rounds.{self.prefix}{k}={{{', '.join(f'{key}: {value}' for key, value in entry.items())}}}")
        mined = dict.fromkeys(self.source(k) for k in range(1, self.n + 1))
        unmined = {*rounds, *(f"{self.prefix}{k}" for k in range(1, self.n + 1))} - set(sources)
        return edits + [f"mine.{name}={{search: {self.search}, depth: 200}}" for name in mined if name in unmined]


def add(plan: Ance) -> list[str]:
    """Write the rounds of `plan` into params.yaml; return their names. Raises UserError, with nothing written, if they do not fit."""
    sections = read_yaml(PARAMS)
    written = sections.get("rounds")
    rounds = written if isinstance(written, dict) else {}  # otherwise `check` reports it
    existing = _numbered(plan.prefix, list(rounds))
    if existing:
        raise UserError(
            f"{PARAMS}: rounds.{existing[0]}: already exists; run retemper rounds remove {plan.prefix}, or choose another --prefix"
        )
    if plan.effective_optimizer == "continue" and plan.steps is None:
        raise UserError("--optimizer continue: expected --steps, for one schedule over all rounds; or --optimizer moments")
    sources = [name for section in ("mine", "mix", "teacher") for name in sections.get(section) or {}]
    apply(plan.assignments(rounds, sources), PARAMS, check)
    return [f"{plan.prefix}{k}" for k in range(1, plan.n + 1)]


def remove(prefix: str) -> list[str]:
    """Remove the rounds PREFIX1, PREFIX2, ... and their entries of `mine` from params.yaml; return their names."""
    sections = read_yaml(PARAMS)
    names = _numbered(prefix, list(sections.get("rounds") or {}))
    if not names:
        raise UserError(f"{PARAMS}: no rounds {prefix}1, {prefix}2, ...; existing rounds: {', '.join(sections.get('rounds') or {})}")
    edits = [f"mine.{name}=" for name in names if name in (sections.get("mine") or {})]
    apply([*edits, *(f"rounds.{name}=" for name in names)], PARAMS, check)
    return names


def _numbered(prefix: str, names: Sequence[str]) -> list[str]:
    return [name for name in names if re.fullmatch(re.escape(prefix) + r"\d+", str(name))]
