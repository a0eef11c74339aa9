"""Training curves as DVCLive leaves them."""

from pathlib import Path

from tasks.core.charts.curves import POINTS, Curve, losses_by_kind, read_tsv, thinned


def test_curves_skip_non_finite_values_and_are_thinned(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("step\tloss\n0\t1.5\n1\tinf\n2\t\n3\t0.5\n")
    (tmp_path / "b.tsv").write_text("timestamp\tstep\tloss\n99\t7\t0.25\n")
    (tmp_path / "c.tsv").write_text("")
    assert read_tsv(tmp_path / "a.tsv") == [(0, 1.5), (3, 0.5)]
    assert read_tsv(tmp_path / "b.tsv") == [(7, 0.25)]
    assert read_tsv(tmp_path / "c.tsv") == []
    long = [(float(x), 2.0 * x) for x in range(POINTS * 3)]
    assert thinned(long)[:2] == [(1.0, 2.0), (4.0, 8.0)]
    assert len(thinned(long)) == POINTS


def test_losses_of_different_kinds_are_apart_and_other_quantities_are_not() -> None:
    a, b, c, d = (Curve(name, ((0, 1.0),)) for name in "abcd")
    kinds = {"a": "nll", "b": "ranknet", "c": "nll"}
    curves = {"loss": [a, b, c, d], "validation loss": [a, c], "accuracy": [a, b]}
    assert losses_by_kind(curves, kinds) == {
        "loss (nll)": [a, c],
        "loss (ranknet)": [b],
        "loss (other)": [d],
        "validation loss": [a, c],
        "accuracy": [a, b],
    }
