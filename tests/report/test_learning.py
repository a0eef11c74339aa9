"""Learning curves of chains of trainings, by hand."""

from pathlib import Path

from tasks.adore.params import Adore
from tasks.core.charts.vega import Line, Point
from tasks.report.learning import learning_curves, loss_kinds, steps_of
from tasks.train.params import Round
from tests.report.test_systems import system as make_system

SECTIONS = {
    "rounds": {
        "init": {"init": "base", "steps": 0},
        "warmup": {"init": "base", "negatives": "bm25"},
        "star": {"init": "warmup", "negatives": "warmup"},
        "costa_warmup": {"init": "costa", "negatives": "bm25"},
        "second": {"init": "costa_warmup", "negatives": "costa_warmup"},
    },
    "adore": {"tower": {"round": "star", "negatives": "none"}},
}
NAMES = ("init", "warmup", "star", "costa_warmup", "second", "tower")


def test_a_line_is_a_chain_and_a_dot_a_training() -> None:
    systems = [make_system(name, [n / 10]) for n, name in enumerate(NAMES)]
    systems = [type(entry)(entry.name, "", {"dev": entry.metrics["test"]}, {}, {}) for entry in systems]
    steps = {"warmup": 46, "star": 57, "costa_warmup": 10, "second": 5, "tower": 100}
    assert learning_curves(systems, "AP", steps, SECTIONS) == [
        Line(
            "second",
            [Point(10, 0.3, note="costa_warmup 0.3000, negatives bm25"), Point(15, 0.4, note="second 0.4000, negatives costa_warmup")],
        ),
        Line(
            "tower",
            [
                Point(0, 0.0, note="init 0.0000"),
                Point(46, 0.1, note="warmup 0.1000, negatives bm25"),
                Point(103, 0.2, note="star 0.2000, negatives warmup"),
                Point(203, 0.5, note="tower 0.5000, negatives none"),
            ],
        ),
    ]
    assert not learning_curves(systems[:4], "AP", {"warmup": 46, "costa_warmup": 10}, SECTIONS), "no chain of two that is measured"


def test_steps_are_those_of_the_loss(tmp_path: Path) -> None:
    for name, last in {"warmup": 999, "none": 0}.items():
        folder = tmp_path / name / "plots/metrics/train"
        folder.mkdir(parents=True)
        (folder / "loss.tsv").write_text("step\tloss\n" + "".join(f"{step}\t1.5\n" for step in range(last + 1)))
    (tmp_path / "init").mkdir()
    assert steps_of(tmp_path) == {"none": 1, "warmup": 1000}


def test_the_kind_of_a_loss_is_that_of_params_yaml() -> None:
    sections = {"rounds": {"a": {"loss": "ranknet"}, "b": {}, "c": {"loss": "tasks.train.mine:my_loss"}}, "adore": {"q": {}}}
    kinds = {"a": "ranknet", "b": "nll", "c": "my_loss", "q": "lambda", "small": "reranker"}
    assert loss_kinds("abcq", sections) | loss_kinds(["small"], sections) == kinds
    assert (Round.model_fields["loss"].default, Adore.model_fields["loss"].default) == ("nll", "lambda")
