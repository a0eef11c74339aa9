"""A query-side training from round to query tower, as the entry runs it once and a study once for each index."""

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tasks.adore.data import Data, steps_of
from tasks.adore.documents import Centroids, Compressed, Documents, Exact, Rescored
from tasks.adore.params import Adore, QuerySide
from tasks.adore.step import make_corpus, make_step
from tasks.core.models.bi_encoder import Encoder, Towers
from tasks.core.retrieval.embeddings import Embeddings
from tasks.core.retrieval.faiss_build import Recipe, build
from tasks.core.retrieval.faiss_search import open_index, save_index
from tasks.core.retrieval.ranked import id_order
from tasks.core.stage.devices import Runtime, kept_tokens
from tasks.core.stage.errors import UserError
from tasks.core.stage.scratch import seal, sealed
from tasks.core.text.tokens import Tokens
from tasks.core.training.loop import Schedule, fit, plotted
from tasks.core.training.optimizers import make_optimizer

INDEX = "index.faiss"
FLAT = "Flat"  # the one factory that does not need faiss: the embeddings are searched directly


@dataclass(frozen=True)
class Setting:
    """What all trainings of one entry share."""

    towers: Towers
    embeddings: Embeddings
    queries: Tokens
    data: Data
    runtime: Runtime
    device: torch.device
    dtype: torch.dtype


def built_index(embeddings: Embeddings, recipe: Recipe, path: Path, key: str) -> Any:
    """The faiss index of `recipe`, kept at `path`: a resumed training must search the same one."""
    if not sealed(path):
        save_index(build(embeddings, recipe, key), path)
        seal(path)
    return open_index(path, threads=torch.get_num_threads())


def open_documents(setting: Setting, params: Adore, scratch: Path, key: str) -> Documents:
    """The document side, to be searched as `params` says."""
    if params.index == FLAT:
        if params.centroids:
            raise UserError(f"params.yaml: {key}: Flat has no centroids; set an index such as OPQ24,IVF1,PQ24x8, or centroids: false")
        return Exact(setting.embeddings, setting.device)
    index = built_index(setting.embeddings, params, scratch / INDEX, key)
    if params.centroids:
        return Centroids(index, setting.device, key)
    return compressed_documents(index, Exact(setting.embeddings, setting.device), params, key)


def compressed_documents(index: Any, vectors: Exact, params: QuerySide, key: str) -> Documents:
    """The document side of an index whose vectors are fixed."""
    return Rescored(index, vectors) if params.scored == "exact" else Compressed(index, vectors.device, key)


def centroid_lr(params: Adore, documents: Centroids) -> float:
    """The peak learning rate of the centroids; if not given, by bytes per vector as in JPQ's scripts."""
    size = documents.weight.shape[0]
    return params.centroid_lr or (5e-6 if size <= 24 else 2e-5 if size <= 32 else 1e-4)


def train_tower(setting: Setting, params: QuerySide, documents: Documents, scratch: Path, curves: Path, what: str) -> tuple[Encoder, int]:
    """A trained copy of the round's query tower, and the steps it took; `documents`' centroids are trained in place, if enabled."""
    tower = copy.deepcopy(setting.towers.query).to(setting.device).train()
    optimizer = make_optimizer(params.optimizer, tower, params.lr, params.weight_decay)
    module = nn.ModuleDict({"query": tower})
    if isinstance(documents, Centroids) and isinstance(params, Adore):
        module["documents"] = documents
        optimizer.add_param_group({"params": [documents.weight], "lr": centroid_lr(params, documents), "weight_decay": 0.0})
    embeddings = setting.embeddings
    corpus = make_corpus(documents, embeddings.owners(), id_order(embeddings.ids()), params.depth)
    if corpus.depth < params.depth:
        print(f"{what}: depth {params.depth} exceeds the corpus; every list contains all {corpus.depth} documents")
    steps = steps_of(setting.data, params)
    backward = make_step(
        tower,
        setting.queries,
        setting.data,
        corpus,
        params,
        lambda step: plotted(step, steps),
        scratch,
        kept_tokens(setting.runtime, setting.device, tower, tower.transformer.config),
        setting.device,
        setting.dtype,
    )
    schedule = Schedule(steps, params.warmup, params.clip)
    fit(module, optimizer, backward, schedule, scratch, curves, setting.runtime.checkpoint_seconds, what, clipped=tower)
    if isinstance(documents, Centroids):
        documents.write_back()
    return tower.eval(), steps
