"""The settings of runtime.yaml for this machine, which must not change a result. Imports no PyTorch."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from tasks.core.params.sections import Params, read_yaml, validate

RUNTIME_FILE = Path("runtime.yaml")
MIG = "MIG-"  # begins the name of a slice of a GPU


class Runtime(Params):
    """Settings that must not change a result: the content of runtime.yaml, which is optional and not tracked by DVC."""

    device: str = Field(
        "auto",
        pattern=r"^(auto|cpu|cuda(:\d+)?)$",
        description="auto: GPUs if there are any (each stage one of them), else the CPU | cpu | cuda | cuda:N: that GPU alone",
    )
    threads: int | None = Field(
        None,
        ge=1,
        description="CPU threads, per worker if there are several; null: one per core (or fewer by a CPU quota), divided among the "
        "workers (engine ray: all of the smallest node). Another count may change the last bits of a result",
    )
    slots: int = Field(1, ge=1, description="without a GPU: how many stages that need a device run at once; give each its share of threads")
    checkpoint_seconds: float = Field(
        30.0,
        ge=0,
        description="seconds between two checkpoints of a training, or 20 times the time that writing one takes, if longer; a kill "
        "loses at most that much. 0: at every step",
    )
    graph_tokens: Annotated[int, Field(ge=0)] | Literal["auto"] = Field(
        "auto",
        description="tokens of a training step whose activations stay in memory (fp32, texts of 64 tokens: 16,384 take about 3 GiB for "
        "MiniLM, 10 for BERT-base; of 128 tokens: 6 for MiniLM); the rest are encoded twice. auto: 16,384 on a CPU; on a GPU, as "
        "many as half of its free memory is estimated to hold",
    )
    shard_store_gib: float = Field(
        8.0, ge=0, description="disk space for finished embedding shards, in GiB; the least recently used are removed first"
    )
    shard_store_days: float = Field(30.0, ge=0, description="embedding shards that no encode has used for this many days are removed")
    engine: Literal["local", "ray"] = Field("local", description="where the workers of a stage run: this machine, or a Ray cluster")
    workers: Annotated[int, Field(ge=1)] | Literal["all"] = Field(
        1, description="workers of a stage: processes with a GPU or a share of the CPU threads each; all: one per GPU"
    )
    address: str = Field(
        "auto", description="engine ray: address of the cluster's head node; auto: the cluster that this machine is part of"
    )
    restarts: int = Field(3, ge=0, description="how many times the work of a lost worker is repeated before the stage fails")


def read_runtime(path: Path = RUNTIME_FILE) -> Runtime:
    """The runtime file, or the defaults if there is none."""
    return validate(Runtime, read_yaml(path), str(path)) if path.exists() else Runtime()
