"""A query-side training, from a round to a query tower. An entry of `adore` runs it once, a study once per index."""

import copy
import shutil
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tasks.adore.data import Data, read_data, steps_of
from tasks.adore.documents import Centroids, Compressed, Documents, Exact, Rescored, Shared
from tasks.adore.params import Adore, QuerySide, Study
from tasks.adore.step import make_corpus, make_step
from tasks.core.errors import UserError
from tasks.core.files import write_json
from tasks.core.machine.devices import compute_dtype, kept_tokens
from tasks.core.models.bi_encoder import Encoder, Towers, load_towers, save_towers, temperature_warning
from tasks.core.params.runtime import Runtime
from tasks.core.retrieval.ann.build import Recipe, build_file, trained_empty
from tasks.core.retrieval.ann.search import ShortLists, open_index, save_index
from tasks.core.retrieval.ann.trained import Trained, read_trained, write_trained
from tasks.core.retrieval.embeddings import Embeddings, open_embeddings
from tasks.core.retrieval.ranked import id_order
from tasks.core.stage.scratch import is_sealed, seal
from tasks.core.tables.ids import Ints
from tasks.core.tokens.folder import Tokens, open_tokens
from tasks.core.tokens.tokenizer import load_tokenizer
from tasks.core.training.companions import LEARNED, copy_companions
from tasks.core.training.compute import Compute
from tasks.core.training.loop import Journal, Schedule, fit, is_plotted
from tasks.core.training.optimizers import make_optimizer
from tasks.core.training.replay import replayed_from

if TYPE_CHECKING:
    from tasks.core.workers.gang import Gang

INDEX = "index.faiss"
FLAT = "Flat"  # the one factory that does not need faiss: the embeddings are searched directly


@dataclass(frozen=True)
class Setting:
    """Everything that all trainings of one entry share."""

    towers: Towers
    embeddings: Embeddings
    queries: Tokens
    data: Data
    runtime: Runtime
    device: torch.device
    dtype: torch.dtype
    gang: "Gang | None" = None


@dataclass(frozen=True)
class Outs:
    """Folders to write into, empty at first."""

    curves: Path
    index: Path
    encoder: Path


def read_setting(
    args: Namespace, params: Adore | Study, key: str, runtime: Runtime, scratch: Path, device: torch.device, gang: "Gang | None" = None
) -> Setting:
    """Read everything that the trainings share, from the folders on the command line `args`."""
    documents, queries = open_tokens(args.tokens / "documents"), open_tokens(args.tokens / "queries" / "train")
    negatives = args.negatives / "train.parquet" if isinstance(params, Adore) and params.lists == "given" else None
    data = read_data(queries, documents, args.corpus / "qrels" / "train.parquet", negatives, params.depth, scratch)
    replay, ids = params.replay if isinstance(params, Adore) else 1, queries.folder / "ids.parquet"
    queries_N, line = replayed_from(args.round_state, data.queries, ids, share=replay, seed=params.seed, key=key)
    if line:
        print(f"{key}: {line}")
    data, dtype = replace(data, queries=queries_N), compute_dtype(device, params.precision)
    return Setting(load_towers(args.round), open_embeddings(args.embeddings), queries, data, runtime, device, dtype, gang)


def adore(
    args: Namespace, params: Adore, runtime: Runtime, scratch: Path, outs: Outs, device: torch.device, gang: "Gang | None" = None
) -> None:
    """Run the entry `args.name` of `adore` on `device`, alone or as a rank of `gang`. In a gang, only the first rank writes."""
    key = f"adore.{args.name}"
    if params.steps == 0:
        write_untrained(args, params, scratch, outs, key)
        return
    setting = read_setting(args, params, key, runtime, scratch, device, gang)
    documents = open_documents(setting, params, scratch, key, inherited_index(args, params, setting.embeddings, key))
    label = f"adore {args.name} ({device.type}, {str(setting.dtype).removeprefix('torch.')})"
    if line := temperature_warning(setting.towers.document.shape, params.temperature):
        print(f"adore {args.name}: {line}")
    tower, steps = train_tower(setting, params, documents, scratch, outs.curves, label)
    if gang is not None and not gang.is_first:
        return
    write_outs(args, params, scratch, outs, steps, Towers(tower, setting.towers.document), documents)


def write_untrained(args: Namespace, params: Adore, scratch: Path, outs: Outs, key: str) -> None:
    """Write the outs of an entry with steps: 0: the round's towers, untrained, over the index of `params`."""
    embeddings, documents = open_embeddings(args.embeddings), None
    if params.index != FLAT:
        trained = inherited_index(args, params, embeddings, key)
        index = built_index(embeddings, params, scratch / INDEX, f"{key}.index", trained)
        documents = Centroids.of(index, trained, torch.device("cpu"), f"{key}.index") if params.centroids else None
    write_outs(args, params, scratch, outs, 0, load_towers(args.round), documents)
    copy_companions(args.round_state, args.state)
    copy_companions(outs.index, args.state)  # the trained part of this entry's own index, if it has one


def write_outs(args: Namespace, params: Adore, scratch: Path, outs: Outs, steps: int, towers: Towers, documents: Documents | None) -> None:
    """Write the curves, the index that is searched, its trained part, and the encoder.

    Index and trained part come from scratch, except for trained centroids.
    """
    write_json(outs.curves / "round.json", {"steps": steps})
    index_path, centroids = scratch / INDEX, None
    if isinstance(documents, Centroids):
        centroids = documents.weight.detach().cpu().numpy()
        save_index(documents.index, outs.index / INDEX)
    elif index_path.exists():
        shutil.copyfile(index_path, outs.index / INDEX)
    if index_path.exists():
        trained = read_trained(scratch / LEARNED, params.index, key=f"adore.{args.name}")
        write_trained(outs.index / LEARNED, replace(trained, centroids=centroids))
    description = {"round": params.round, "factory": params.index, "centroids": params.centroids}
    write_json(outs.index / "index.json", description | ({"trained": True} if index_path.exists() else {}))
    save_towers(towers, load_tokenizer(args.round), outs.encoder, open_tokens(args.tokens / "queries" / "train").max_length)


def inherited_index(args: Namespace, params: Adore, embeddings: Embeddings, key: str) -> Trained | None:
    """The trained index that came with the round's encoder, or None if `params` asks for a new one."""
    if params.quantizer == "trained":
        return None
    trained = read_trained((args.round_state or args.round) / LEARNED, params.index, embeddings.manifest.width, key=key)
    if trained.centroids is not None and not params.centroids:
        raise UserError(
            f"params.yaml: {key}.centroids: found false, but the given index has trained centroids (JPQ), which would be lost; expected "
            "true, or quantizer: trained"
        )
    return trained


def built_index(
    embeddings: Embeddings, recipe: Recipe, path: Path, key: str, trained: Trained | None = None, *, mapped: bool = False
) -> Any:
    """Open the faiss index at `path`, built by `recipe` if it is not there; `trained`, if given, is filled instead of a new one.

    With `mapped`, its vectors stay in the file.

    It stays on disk because a resumed training must search the same index. Its trained part is kept beside it, and written while it is
    still empty: there may not be memory for two copies of the documents.
    """
    learned = path.with_name(LEARNED)
    if not (is_sealed(path) and is_sealed(learned)):
        index = trained.index if trained else trained_empty(embeddings, recipe, key)
        write_trained(learned, Trained(recipe.factory, index))
        seal(learned)
        build_file(embeddings, recipe, path, key, trained=index)
        seal(path)
    return open_index(path, threads=torch.get_num_threads(), mapped=mapped)


def open_documents(setting: Setting, params: Adore, scratch: Path, key: str, trained: Trained | None) -> Documents:
    """Open the document side, to be searched as `params` (the entry `key`) says."""
    if params.index == FLAT:
        return exact_documents(setting, scratch)
    searches = setting.gang is None or setting.gang.is_first
    index = built_index(setting.embeddings, params, scratch / INDEX, f"{key}.index", trained, mapped=not searches and not params.centroids)
    if params.centroids:
        return Centroids.of(index, trained, setting.device, f"{key}.index")
    vectors = partial(exact_documents, setting, scratch)
    return compressed_documents(index, vectors, params, f"{key}.index", setting.device, searches=searches)


def exact_documents(setting: Setting, scratch: Path) -> Exact | Shared:
    """The uncompressed vectors: all in this process, or shared among the ranks of a gang."""
    if setting.gang is None:
        return Exact(setting.embeddings, setting.device, scratch)
    return Shared(setting.embeddings, setting.device, scratch, setting.gang)


def compressed_documents(
    index: Any, vectors: Callable[[], Exact | Shared], params: QuerySide, key: str, device: torch.device, *, searches: bool = True
) -> Documents:
    """The document side for a faiss index whose centroids are not trained."""
    return Rescored(index, vectors(), searches=searches) if params.scored == "exact" else Compressed(index, device, key, searches=searches)


def centroid_lr(params: Adore, documents: Centroids) -> float:
    """The peak learning rate of the centroids. If not set, it depends on bytes per vector as in JPQ's scripts."""
    size = documents.weight.shape[0]
    return params.centroid_lr or (5e-6 if size <= 24 else 2e-5 if size <= 32 else 1e-4)


def _warn_once(short: ShortLists, label: str, index: Any, lengths_B: Ints) -> None:
    """Print a warning the first time that a search finds too few documents."""
    if not short.short:
        short.count(lengths_B).warn(label, index)


def train_tower(setting: Setting, params: QuerySide, documents: Documents, scratch: Path, curves: Path, label: str) -> tuple[Encoder, int]:
    """Train a copy of the round's query tower; return it and its steps. Centroids of `documents`, if trained, change in place."""
    tower = copy.deepcopy(setting.towers.query).to(setting.device).train()
    optimizer = make_optimizer(params.optimizer, tower, params.lr, params.weight_decay)
    module = nn.ModuleDict({"query": tower})
    if isinstance(documents, Centroids) and isinstance(params, Adore):
        module["documents"] = documents
        optimizer.add_param_group({"params": [documents.weight], "lr": centroid_lr(params, documents), "weight_decay": 0.0})
    embeddings = setting.embeddings
    corpus = make_corpus(documents, embeddings.owners(), id_order(embeddings.ids()), params.depth, setting.gang)
    if corpus.depth < params.depth:
        print(f"{label}: depth {params.depth} exceeds the corpus; every list contains all {corpus.depth} documents")
    if isinstance(documents, Compressed | Rescored) and (setting.gang is None or setting.gang.is_first):
        corpus = replace(corpus, on_search=partial(_warn_once, ShortLists(corpus.depth), label, documents.index))
    steps = steps_of(setting.data, params)
    runtime, device = setting.runtime, setting.device
    compute = Compute(device, setting.dtype, kept_tokens(runtime, device, tower, tower.transformer.config), setting.gang)
    training_steps = make_step(tower, setting.queries, setting.data, corpus, params, lambda step: is_plotted(step, steps), scratch, compute)
    journal = Journal(label, scratch, curves, runtime.checkpoint_seconds)
    fit(module, optimizer, training_steps, Schedule(steps, params.warmup, params.clip), journal, clipped=tower, gang=setting.gang)
    if isinstance(documents, Centroids):
        documents.write_back()
    return tower.eval(), steps
