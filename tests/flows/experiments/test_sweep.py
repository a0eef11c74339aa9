"""Sweeps: a real one over a toy project, whose experiments DVC itself shows, applies and pushes."""

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from dvc.repo import Repo
from ruamel.yaml import YAML

from flows.experiments import store
from flows.experiments.grid import Point
from flows.experiments.sweep import inputs, sweep
from flows.repository import lock, worktree
from flows.repository.git import git
from flows.storage.cache import object_path
from tasks.core.errors import UserError

SWEEP = """
import sys
from pathlib import Path
from flows.experiments.sweep import sweep
from tests.forks import FORK
run = [*FORK, "tests.forked", "--toy", "run"]
sys.exit(sweep(Path("grid.yaml"), int(sys.argv[1]), False, run=run, check=lambda sections: None, describe=lambda params, described: None))
"""


def test_a_table_shows_where_parameters_differ_and_test_only_when_asked() -> None:
    def experiment(name: str, value: object, dev: float) -> store.Experiment:
        params = {"report.metric": "RR@10", "a.b": value, "same": 1}
        return store.Experiment(name, "", "", "", params, {"star": {"dev": {"RR@10": dev}, "test": {"RR@10": 0.75}}})

    experiments = [experiment("x", 1e-5, 0.25), experiment("y", [1, 2], 0.5)]
    lines = store.table(experiments, test=False).splitlines()
    assert lines[0] == "RR@10"
    assert [line.split() for line in lines[1:]] == [
        ["experiment", "a.b", "dev", "star"],
        ["x", "1e-05", "0.2500"],
        ["y", "[1,", "2]", "0.5000"],
    ]
    assert "0.7500" in store.table(experiments, test=True)
    assert store.flatten({"a": {"b": {}, "c": 1}, "d": 2}) == {"a.b": {}, "a.c": 1, "d": 2}


def test_a_worktree_that_was_spoilt_is_made_anew(toy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(toy.folder)
    for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_NOSYSTEM"):
        monkeypatch.setenv(name, toy.environment[name])
    commit, path = git("rev-parse", "HEAD"), Path(".retemper/sweep/slot-0/up/up/tree-0")
    hook = Path(".git/hooks/post-checkout")  # as `dvc install` makes it; git checkout then ends with its status
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)
    tree = worktree.make_worktree(path, commit)
    (toy.folder / ".git/worktrees/tree-0/index.lock").write_text("")
    (tree / "step.py").write_text("spoilt")
    assert worktree.make_worktree(path, commit) == tree, "the lock of a dead git goes"
    assert (tree / "step.py").read_text() == (toy.folder / "step.py").read_text()
    (tree / ".git").write_text("gitdir: nowhere\n")
    worktree.make_worktree(path, commit)
    assert git("status", "--short", folder=tree) == ""
    for setting in ("diff.noprefix=true", "diff.external=false", "color.ui=always"):
        toy.command("git", "config", *setting.split("="))
    toy.set_rounds(a="5", b="6")
    expected = (toy.folder / "params.yaml").read_text()
    worktree.carry_changes(worktree.read_changes(commit), tree)
    assert (tree / "params.yaml").read_text() == expected


@pytest.mark.parametrize("own_cache", [False, True])
def test_a_remote_that_is_a_folder_is_found_from_every_tree(toy: Any, own_cache: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(toy.folder)
    toy.command(sys.executable, "-m", "dvc", "remote", "add", "-d", "team", "../remote")
    tree = Path(".retemper/sweep/slot-0/up/up/tree-0")
    shutil.copytree(".dvc", tree / ".dvc")
    shutil.copy("params.yaml", tree)
    (tree / "runtime.yaml").write_text("device: cpu\n")  # of a sweep before; here it was removed since
    worktree.equip(tree, own_cache=own_cache)
    assert not (tree / "runtime.yaml").exists()
    with Repo(str(tree)) as repo:
        assert Path(repo.config["remote"]["team"]["url"]) == toy.folder.parent / "remote"
        assert Path(repo.cache.local_cache_dir) == (tree.absolute() if own_cache else toy.folder) / ".dvc/cache"


def test_an_experiment_holds_new_code_and_no_byte_code(toy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    enter(toy, monkeypatch)
    for name in ("code/__init__.py", "code/__pycache__/a.pyc", "code/deep/__pycache__/b.pyc", "code/deep/b.py", "tasks/new.py"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("")
    Path("dvc.yaml").write_text(Path("dvc.yaml").read_text().replace("deps: [step.py]", "deps: [step.py, code]"))
    commit = store.save(Path.cwd(), lock.commit_of("HEAD"), "x", inputs="", files=[])
    files = git("ls-tree", "-r", "--name-only", commit, "code", "tasks").splitlines()
    assert files == ["code/__init__.py", "code/deep/b.py", "tasks/new.py"]


def test_an_experiment_shows_no_round_that_was_removed(toy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """DVC keeps its entry in dvc.lock."""
    monkeypatch.chdir(toy.folder)
    toy.set_rounds(a="1")
    figures = b'{"dev": {"nDCG@10": 0.5}}'
    digest = hashlib.md5(figures).hexdigest()
    file = object_path(Path(".dvc/cache/files/md5"), digest)
    file.parent.mkdir(parents=True)
    file.write_bytes(figures)
    stages = {f"evaluate@{name}": {"cmd": "x", "outs": [{"path": f"data/metrics/{name}.json", "md5": digest}]} for name in ("a", "b")}
    Path("dvc.lock").write_text(json.dumps({"schema": "2.0", "stages": stages}))
    toy.command("git", "add", ".")
    toy.command("git", "commit", "--quiet", "-m", "b was removed")
    assert store.read("x", "HEAD", "", cache=Path(".dvc/cache")).metrics == {"a": {"dev": {"nDCG@10": 0.5}}}


def test_changes_are_carried_byte_by_byte(toy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(toy.folder)
    text = Path("step.py").read_bytes()
    Path("step.py").write_bytes(b"# one\r\n# two\r\n" + text)
    toy.command("git", "commit", "--quiet", "-am", "made on Windows")
    content = b"# one\r\n# another, by \xe9\r\n" + text
    Path("step.py").write_bytes(content)
    commit = lock.commit_of("HEAD")
    tree = worktree.make_worktree(Path(".retemper/sweep/slot-0/up/up/tree-0"), commit)
    worktree.carry_changes(worktree.read_changes(commit), tree)
    assert (tree / "step.py").read_bytes() == content


def test_every_point_has_what_the_tree_held_when_the_sweep_began(toy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each point's run also edits the working tree, as a person might meanwhile: the next point must not see that."""
    enter(toy, monkeypatch)
    (toy.folder / "dvc.yaml").write_text((toy.folder / "dvc.yaml").read_text().replace("deps: [step.py]", "deps: [step.py, new.py]"))
    (toy.folder / "new.py").write_text("first\n")
    toy.set_rounds(a="5", b="6")
    (toy.folder / "grid.yaml").write_text("grid: {first: [x, y]}\n")
    save = (
        "import pathlib; new = pathlib.Path('new.py').read_text(); params = pathlib.Path('params.yaml').read_text(); "
        f"pathlib.Path({str(toy.folder)!r}, 'seen').open('a').write(new + params); there = pathlib.Path({str(toy.folder)!r}); "
        "there.joinpath('new.py').write_text('second\\n'); there.joinpath('params.yaml').write_text('first: 9\\nrounds: {}\\n')"
    )
    assert sweep(Path("grid.yaml"), 1, False, run=[sys.executable, "-c", save], check=lambda _: None, describe=lambda *_: None) == 0
    for value in ("x", "y"):
        assert f"first\nfirst: {value}\nrounds:\n  a: {{value: 5}}\n  b: {{value: 6}}\n" in Path("seen").read_text()


def enter(toy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in the toy's folder, with its identity in git."""
    monkeypatch.chdir(toy.folder)
    for name, value in toy.environment.items():
        if name.startswith("GIT_"):
            monkeypatch.setenv(name, value)


@pytest.mark.parametrize("layout", ["", "table: {caption: Toys, models: [a], measures: [nDCG@10]}\n"])
def test_a_sweep_ends_with_its_best_point(
    toy: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], layout: str
) -> None:
    enter(toy, monkeypatch)
    toy.set_rounds(a="5")
    (toy.folder / "grid.yaml").write_text(f"grid: {{rounds.a.value: [1, 2, 3]}}\nrepeat: {{first: [x, y]}}\n{layout}")
    measure = (
        "import hashlib, json, pathlib, re; value = int(re.search('value: (.)', pathlib.Path('params.yaml').read_text())[1]); "
        "text = json.dumps({'dev': {'nDCG@10': value / 4}}).encode(); digest = hashlib.md5(text).hexdigest(); "
        f"file = pathlib.Path({str(toy.folder)!r}, '.dvc/cache/files/md5', digest[:2], digest[2:]); "
        "file.parent.mkdir(parents=True, exist_ok=True); file.write_bytes(text); outs = [{'path': 'data/metrics/a.json', 'md5': digest}]; "
        "lock = {'schema': '2.0', 'stages': {'evaluate@a': {'cmd': 'x', 'outs': outs}}}; "
        "pathlib.Path('dvc.lock').write_text(json.dumps(lock))"
    )
    assert (
        sweep(
            Path("grid.yaml"),
            1,
            False,
            run=[sys.executable, "-c", measure],
            check=lambda _: None,
            describe=lambda *_: None,
            edits=["other=[4, 5]"],
        )
        == 0
    )
    lines = capsys.readouterr().out.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("best on dev"))
    assert lines[start - 1] == ""
    assert lines[start] == "best on dev by nDCG@10: value=3 with 0.7500 (a, mean of 2 runs); next value=2 with 0.5000 (a)"
    assert lines[start + 1].startswith("the best two were not tested against each other: compare "), "the toy keeps no values by query"
    assert lines[start + 2 :] == [
        "rounds.a.value: the best value, 3, is the largest tried; try larger ones",
        "to adopt it: retemper run --set rounds.a.value=3 --set 'other=[4, 5]'",
    ]
    if layout:
        assert "rounds.a.value: the best value, 3, is the largest" in (toy.folder / ".retemper/sweep/grid.html").read_text()


def test_a_point_whose_metrics_the_cache_lacks_runs_again(
    toy: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """If they are still missing then, it is named, and the conclusion says that it is of the others."""
    enter(toy, monkeypatch)
    toy.set_rounds(a="5")
    Path("grid.yaml").write_text("grid: {rounds.a.value: [1, 2, 3]}\n")
    lock = (
        "import hashlib, json, pathlib, re; value = int(re.search('value: (.)', pathlib.Path('params.yaml').read_text())[1]); "
        "text = json.dumps({'dev': {'nDCG@10': value / 4}}).encode(); digest = hashlib.md5(text).hexdigest(); "
        "outs = {name: [{'path': f'data/metrics/{name}.json', 'md5': digest if name == 'a' else '0' * 32}] for name in 'ab'}; "
        "stages = {f'evaluate@{name}': {'cmd': 'x', 'outs': outs[name]} for name in outs}; "  # b: of before, which no point measures
        "pathlib.Path('dvc.lock').write_text(json.dumps({'schema': '2.0', 'stages': stages})); "
    )
    measure = lock + (
        f"file = pathlib.Path({str(toy.folder)!r}, '.dvc/cache/files/md5', digest[:2], digest[2:]); "
        "file.parent.mkdir(parents=True, exist_ok=True); file.write_bytes(text)"
    )
    best = "best on dev by nDCG@10: value=3 with 0.7500 (a); next value=2 with 0.5000 (a)"

    def run_sweep(program: str) -> tuple[int, list[str], str]:
        status = sweep(Path("grid.yaml"), 1, False, run=[sys.executable, "-c", program], check=lambda _: None, describe=lambda *_: None)
        output = capsys.readouterr()
        return status, output.out.splitlines(), output.err

    status, lines, _ = run_sweep(measure)
    assert status == 0 and best in lines
    file = object_path(Path(".dvc/cache/files/md5"), hashlib.md5(b'{"dev": {"nDCG@10": 0.75}}').hexdigest())
    file.write_bytes(b"corrupt")
    status, lines, errors = run_sweep(lock)
    assert (status, lines[0]) == (
        1,
        "3 points, 2 of them stored already; 1 run again, as this clone's cache lacks their metrics or has them corrupt",
    )
    assert "value_3: the cache has no intact metrics of a; run retemper verify, then this again" in errors
    assert "best on dev by nDCG@10, of the points stored so far: value=2 with 0.5000 (a); next value=1 with 0.2500 (a)" in lines
    file.unlink()
    status, lines, errors = run_sweep(measure)
    assert (status, errors) == (0, "") and best in lines
    status, lines, _ = run_sweep("raise SystemExit(3)")
    assert (status, lines[0]) == (0, "3 points, 3 of them stored already")


def test_a_source_that_grew_makes_another_point(retraining: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(retraining.folder)
    point = Point("x", ("bm25.k1=1.5",))
    first = inputs(point, lambda _: None)
    assert inputs(point, lambda _: None) == first
    retraining.add(0.7)
    assert inputs(point, lambda _: None) != first


def test_a_point_is_another_one_if_code_that_stages_execute_is(toy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """dvc.yaml names no code of tasks/."""
    monkeypatch.chdir(toy.folder)
    point, entry = Point("x", ()), Path("tasks/one/__main__.py")
    entry.parent.mkdir(parents=True)
    entry.write_text("print(1 + 1)\n")
    first = inputs(point, lambda _: None, lambda *_: None)
    entry.write_text("print(1 + 1)  # two\n")
    assert inputs(point, lambda _: None, lambda *_: None) == first
    entry.write_text("print(1 - 1)\n")
    second = inputs(point, lambda _: None, lambda *_: None)
    assert second != first
    (entry.parent / "mine.py").write_text("def loss(): return 1\n")  # no stage imports it, but the parameters name it
    Path("params.yaml").write_text(Path("params.yaml").read_text() + "named: tasks.one.mine:loss\n")
    third = inputs(point, lambda _: None, lambda *_: None)
    (entry.parent / "mine.py").write_text("def loss(): return 2\n")
    assert third.digest not in (second.digest, inputs(point, lambda _: None, lambda *_: None).digest)


@pytest.mark.heavy
def test_a_sweep_is_stored_as_experiments_and_leaves_the_tree_alone(finished_toy: Any, tmp_path: Path) -> None:
    def output_of(*words: str) -> str:
        return subprocess.run(
            words, cwd=finished_toy.folder, env=finished_toy.environment, capture_output=True, text=True, check=True
        ).stdout

    dvc = (sys.executable, "-m", "dvc")
    (finished_toy.folder / "step.py").write_text((finished_toy.folder / "step.py").read_text() + "# not committed\n")
    (finished_toy.folder / "grid.yaml").write_text(
        "grid: {rounds.b.value: [2, 7]}\npoints: {more: {rounds.c: {value: 7}, rounds.b.value: 7}}\n"
    )
    before = (
        output_of("git", "status", "--short"),
        (finished_toy.folder / "params.yaml").read_text(),
        (finished_toy.folder / "dvc.lock").read_text(),
    )
    environment = {name: value for name, value in finished_toy.environment.items() if not name.startswith("GIT_AUTHOR")}
    anonymous = type(finished_toy)(
        finished_toy.folder, {name: value for name, value in environment.items() if not name.startswith("GIT_COMMITTER")}
    )
    process = anonymous.start("2", script=SWEEP)  # git knows nobody here
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, out + err
    assert "3 points, 0 of them stored already" in out
    assert before == (
        output_of("git", "status", "--short"),
        (finished_toy.folder / "params.yaml").read_text(),
        (finished_toy.folder / "dvc.lock").read_text(),
    )
    assert (finished_toy.folder / "data/encoders/b").read_text().startswith("2(")

    result = finished_toy.call("1", script=SWEEP)
    assert result.returncode == 0
    assert "3 points, 3 of them stored already" in result.stdout
    assert "at work" not in result.stdout
    assert result.stdout.splitlines()[-6].split()[:2] == ["experiment", "rounds.b.value"]
    assert result.stdout.splitlines()[-1] == "best on dev by nDCG@10: none, all 3 settings have 0.5000"

    experiments = {
        entry["name"]: entry
        for revision in json.loads(output_of(*dvc, "exp", "show", "--json"))
        for entry in (revision.get("experiments") or [])
    }
    assert sorted(name.rpartition("-")[0] for name in experiments) == ["more", "value_2", "value_7"]
    more = next(name for name in experiments if name.startswith("more"))
    metrics = experiments[more]["revs"][0]["data"]["metrics"]
    assert metrics["data/metrics/c.json"]["data"]["dev"]["nDCG@10"] == 0.5

    remote = tmp_path / "origin.git"
    output_of("git", "init", "--quiet", "--bare", str(remote))
    output_of("git", "remote", "add", "origin", str(remote))
    output_of(*dvc, "exp", "push", "--no-cache", "origin", more)
    assert more in output_of("git", "ls-remote", "origin")
    assert "# not committed" in output_of(
        "git", "show", f"{json.loads(finished_toy.call('experiments', '--json').stdout)[0]['commit']}:step.py"
    )

    (finished_toy.folder / "step.py").write_text((finished_toy.folder / "step.py").read_text().replace("# not committed\n", ""))
    subprocess.run([*dvc, "exp", "apply", more], cwd=finished_toy.folder, env=finished_toy.environment, capture_output=True, check=False)
    rounds = YAML(typ="safe").load(finished_toy.folder / "params.yaml")["rounds"]  # DVC says 255, for it misses `unused`, which nobody ran
    assert (rounds["b"], rounds["c"]) == ({"value": 7}, {"value": 7})
    assert (finished_toy.folder / "data/encoders/c").read_text().startswith("7(")


@pytest.mark.parametrize(
    ("text", "edits", "message"),
    [
        ("grid: {first: [x, y]}", ["first=z"], "points first_x and first_y are the same: first=z overrides first=x; remove one"),
        ("grid: {rounds.a: [{value: 3}, {value: 5}]}", ["rounds.a.value=4"], r"are the same: rounds.a.value=4 overrides rounds.a=\{"),
        (
            "set: {rounds.a.value: 7, rounds.a: {value: 3}}\ngrid: {rounds.a.value: [5, 6]}",
            [],
            r'points value_5 and value_6 are the same: rounds.a=\{"value": 3\} overrides rounds.a.value=5',
        ),
        ("points: {plain: {}, same: {first: one}}", [], "points plain and same are the same: they set values that are already set"),
        ("grid: {first: [x]}", ["first=z"], "point first_x: first=z overrides first=x; remove one of the two"),
        (
            "grid: {first: [x]}\nrepeat: {rounds.a.value: [3, 4]}",
            ["rounds={}"],
            "points first_x-value_3 and first_x-value_4 are the same: rounds=",
        ),
        ("points: {p: {first: x}}\nrepeat: {first: [y, z]}", [], "repeat.first: p sets it too"),
        ("grid: {first: [x, y]}\ntable: {caption: T, models: [a], measures: [R@500]}", [], "point first_x: table.measures: found 'R@500'"),
    ],
)
def test_points_that_are_not_what_they_say_never_run(
    toy: Any, monkeypatch: pytest.MonkeyPatch, text: str, edits: list[str], message: str
) -> None:
    monkeypatch.chdir(toy.folder)
    (toy.folder / "grid.yaml").write_text(text)
    run = [sys.executable, "-c", f"open({str(toy.folder / 'ran')!r}, 'w')"]
    with pytest.raises(UserError, match=message):
        sweep(Path("grid.yaml"), 1, False, run=run, check=lambda _: None, describe=lambda *_: None, edits=edits)
    assert not (toy.folder / "ran").exists()


@pytest.mark.heavy
def test_what_points_share_is_computed_once_where_they_run_side_by_side(served_toy: Any) -> None:
    slow = "if name == 'data/corpus': time.sleep(4)\ndef text(path):"
    step = (served_toy.folder / "step.py").read_text().replace("def text(path):", slow)
    (served_toy.folder / "step.py").write_text(step)
    (served_toy.folder / "grid.yaml").write_text("grid: {rounds.a.value: [5, 6]}\ntargets: [train@a]\n")
    process = served_toy.start("2", script=SWEEP)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, out + err
    logs = [
        map(json.loads, path.read_text().splitlines()) for path in served_toy.folder.glob(".retemper/sweep/slot-*/up/up/tree-*/times.log")
    ]
    stages = sorted((name, start) for lines in logs for name, start, _ in lines)
    assert [name for name, _ in stages] == ["data/corpus", "encoders/a", "encoders/a"]
    assert len(logs) == 2, "each in a tree of its own"
    assert "executed 2, cached 0" in out
    assert "executed 1, cached 1" in out


@pytest.mark.heavy
def test_a_sweep_prints_its_table_of_repetitions_and_goes_as_far_as_its_targets(served_toy: Any) -> None:
    (served_toy.folder / "recipe.yaml").write_text("rounds: {a: {value: 1}, c: {value: 1}}\n")
    (served_toy.folder / "grid.yaml").write_text(
        "sections: recipe.yaml\ngrid: {rounds.c.value: [5]}\nrepeat: {first: [x, z]}\ntargets: [evaluate@c]\n"
        "table: {caption: Toys, models: [c], measures: [nDCG@10], curve: rounds.c.value}\n"
    )
    process = served_toy.start("1", script=SWEEP)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, out + err
    assert "executed 3, cached 0" in out, "the stages of a and the report are left out"
    lines = out.splitlines()
    start = lines.index("Toys, dev")
    assert [line.split() for line in lines[start + 1 : start + 3]] == [["value", "runs", "nDCG@10"], ["5", "2", "0.5000", "±", "0.0000*"]]
    assert "0.5000 ± 0.0000" in (served_toy.folder / ".retemper/sweep/grid.html").read_text()
