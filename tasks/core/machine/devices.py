"""Where tensors are computed, and in which arithmetic: the only place that chooses device, threads, and dtype."""

import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from tasks.core.errors import UserError
from tasks.core.files import write_json
from tasks.core.machine.processes import available_cores, limit_malloc
from tasks.core.params.runtime import RUNTIME_FILE, Runtime
from tasks.core.stage.entry import RECORD

Precision = Literal["bf16", "fp32"]
GRAPH_TOKENS = 16384  # whose graphs a CPU keeps; also those of a GPU's training batch
LEAST_TOKENS = 512  # of a batch
CUBLAS = "CUBLAS_WORKSPACE_CONFIG"  # environment: without one of these values, CUDA's products are not reproducible
REPRODUCIBLE = (":4096:8", ":16:8")
ISA_LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")  # oneDNN takes the first that is set
LIMITS = ("ATEN_CPU_CAPABILITY", *ISA_LIMITS, "ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE", "MKL_CBWR")
WITHOUT_BF16 = ("SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2", "AVX512_CORE", "AVX512_CORE_VNNI")  # values of ISA_LIMITS
ACTIVATION_BYTES = 64  # per token, layer, and unit of width: 34 in Korthikanti et al. (arXiv:2205.05198), more under autocast
STATE_BYTES = 12  # per weight: its gradient and two moments
Module = TypeVar("Module", bound=nn.Module)


def choose_device(runtime: Runtime, begin: bool = True) -> torch.device:
    """The device that `runtime` asks for, set up for reproducible work; UserError if it does not exist.

    Without `begin`, no CUDA context is made, which would take some hundred MB of a GPU: for a process whose workers compute.
    """
    if runtime.threads:
        torch.set_num_threads(runtime.threads)
    elif (available := available_cores()) < torch.get_num_threads():  # torch knows of no quota
        torch.set_num_threads(available)
    gpus = 0 if runtime.device == "cpu" else usable_gpus()
    name = ("cuda" if gpus else "cpu") if runtime.device == "auto" else runtime.device
    device = torch.device(name)
    if os.environ.get(CUBLAS) not in REPRODUCIBLE:
        os.environ[CUBLAS] = REPRODUCIBLE[0]
    torch.use_deterministic_algorithms(True, warn_only=device.type == "cpu")  # on CUDA, a warning alone leaves attention nondeterministic
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined] # slow, and nothing reads unwritten memory
    torch.set_float32_matmul_precision("highest")  # some environments enable TF32, whose products have 10 bits
    torch.backends.cudnn.allow_tf32 = False  # of convolutions; torch's default is True
    if runtime.device != "cpu" and not gpus and (reason := unusable_gpus()):
        if device.type == "cuda":
            raise UserError(f"{RUNTIME_FILE}: device {name}: {reason}")
        print(f"{RUNTIME_FILE}: device auto: {reason}; computing on the CPU", file=sys.stderr)
    if device.type == "cpu":
        keep_memory()
    if device.type == "cuda":
        if (device.index or 0) >= gpus:
            raise UserError(f"{RUNTIME_FILE}: device {name}: found {gpus} GPUs; set device: auto")
        if begin:
            torch.cuda.set_device(device.index or 0)
            refuse_old_gpu(device)
    record_hardware(device)
    return device


def usable_gpus() -> int:
    """How many GPUs this PyTorch can use. Its `device_count` also counts those whose driver is too old for it, as NVML does."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def unusable_gpus() -> str:
    """What is wrong if there are GPUs and none is usable; empty if there is none."""
    count = torch.cuda.device_count()
    if not count:
        return ""
    return (
        f"found {count} GPUs that this PyTorch (CUDA {torch.version.cuda}) cannot use, because their driver is too old or does not work; "
        "update it (nvidia-smi shows its version), or install PyTorch for an older CUDA"
    )


def refuse_old_gpu(device: torch.device) -> None:
    """Raise UserError if this PyTorch has no code for a GPU: neither a binary of its generation nor PTX that it can compile."""
    compiled = [(kind, int(digits)) for kind, digits in re.findall(r"(sm|compute)_(\d+)", " ".join(torch.cuda.get_arch_list()))]
    major, minor = torch.cuda.get_device_capability(device)
    own = 10 * major + minor
    if compiled and not any(code <= own and (kind == "compute" or code // 10 == major) for kind, code in compiled):
        codes = [code / 10 for _, code in compiled]
        raise UserError(
            f"{RUNTIME_FILE}: device {device}: found {torch.cuda.get_device_name(device)} (compute capability {major}.{minor}), expected "
            f"{min(codes)} to {max(codes)}, for which this PyTorch (CUDA {torch.version.cuda}) has code; install PyTorch for an older "
            "CUDA, or set device: cpu"
        )


@contextmanager
def one_thread() -> Iterator[int]:
    """Give torch one thread in each thread that starts within this context. Yields the previous number: as many can work side by side."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # new threads begin with the number that was set last
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)


def record_hardware(device: torch.device) -> None:
    """Record once, in the file that RECORD names, what this stage's bits may depend on; no digest covers it, and no stage reads it."""
    path = os.environ.get(RECORD)
    if not path or Path(path).exists():  # if it exists, this may be a worker with fewer threads
        return
    native = compute_dtype(device, "bf16") == torch.bfloat16
    facts = {
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "instructions": _instructions(),
        "bf16": "native" if native else "as fp32",
    }
    with suppress(OSError):  # a full disk: the stage itself will report it
        write_json(Path(path), facts)


def keep_memory() -> bool:
    """Make this process's malloc keep the memory of freed tensors of up to 32 MiB for later ones. False if it cannot (only glibc can).

    By default it returns memory to the system after nearly every layer; fresh pages take 7 to 10% of the time of encoding on a CPU.
    """
    return limit_malloc(mapped=2**25, kept=2**31 - 1)


def hardware(device: torch.device) -> str:
    """The hardware that a result's bits may depend on: the kind of GPU and its memory, or a CPU's instructions and number of threads."""
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, {torch.cuda.get_device_properties(device).total_memory >> 30} GiB"
    return f"cpu, {_instructions()}, {torch.get_num_threads()} threads"


def gpu_kinds(gpus: int) -> list[str]:
    """The kinds of the first GPUs that this process sees."""
    return sorted({hardware(torch.device("cuda", number)) for number in range(gpus)})


def has_amx() -> bool:
    """Whether the CPU has matrix units that support bfloat16."""
    return torch.cpu._is_amx_tile_supported()


def _instructions() -> str:
    """The widest instructions that PyTorch uses on this CPU, and the environment variables that limit its libraries.

    ATEN_CPU_CAPABILITY limits PyTorch's own kernels, but not the matrix products of MKL and oneDNN.
    """
    widest = "AMX" if has_amx() else str(torch.backends.cpu.get_cpu_capability())
    return ", ".join([widest, *(f"{name}={os.environ[name]}" for name in LIMITS if os.environ.get(name))])


def move_module(module: Module, device: torch.device, dtype: torch.dtype) -> Module:
    """Move a module, in place, and convert its weights to `dtype`.

    Buffers keep their type: rotary frequencies in bf16 are off by half a radian at 500 tokens.
    """
    module.to(device)
    for weight in module.parameters():
        weight.data = weight.data.to(dtype)
    return module


def has_flash_attention(device: torch.device) -> bool:
    """Whether `device` is a GPU for which torch has flash attention: Ampere and later, unless torch was built without it."""
    return (
        device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0) and torch.backends.cuda.is_flash_attention_available()
    )


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Move a CPU tensor to `device`.

    For a GPU its memory is pinned: with ordinary memory, the program would wait for the GPU's current work.
    """
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def to_tensor(array: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """Move an array to `device`, as a tensor, as `to_device` does."""
    return to_device(torch.from_numpy(array), device)


def restore_order(vectors_MD: torch.Tensor, places: Sequence[npt.NDArray[np.int64]]) -> torch.Tensor:
    """Vectors [M, D] in the order of their `places` (0 to M - 1, in parts).

    They are read by index in that order. If they were written by index, the program would wait for the GPU under deterministic algorithms.
    """
    order = np.argsort(np.concatenate([np.empty(0, dtype=np.int64), *places]))
    return vectors_MD[to_tensor(order, vectors_MD.device)]


class Coming:
    """Tensors of one device on their way to the CPU: `arrays` waits until they are computed, but not for work that the GPU gets later."""

    def __init__(self, *tensors: torch.Tensor) -> None:
        self.copies, self.event = list(tensors), None
        if tensors[0].device.type == "cuda":
            self.copies = [torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) for tensor in tensors]
            for copy, tensor in zip(self.copies, tensors, strict=True):
                copy.copy_(tensor, non_blocking=True)
            self.event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self.event.record(torch.cuda.current_stream(tensors[0].device))

    def arrays(self) -> list[npt.NDArray[Any]]:
        if self.event is not None:
            self.event.synchronize()
        return [copy.numpy() for copy in self.copies]


def activations(config: Any) -> int:
    """An upper estimate of the bytes of activations per token that a transformer of configuration `config` keeps for its backward pass."""
    return ACTIVATION_BYTES * int(config.num_hidden_layers) * int(config.hidden_size)


def free_bytes(device: torch.device) -> int:
    """The free memory of a GPU, with what torch keeps of former tensors and gives to new ones."""
    return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def kept_tokens(runtime: Runtime, device: torch.device, module: nn.Module, config: Any) -> int:
    """The number of tokens whose graphs stay in memory in training: `graph_tokens` of the runtime, or an estimate if it is `auto`.

    `config` is the configuration of `module`'s transformer. Changes no result.
    """
    if runtime.graph_tokens != "auto":
        return runtime.graph_tokens
    if device.type != "cuda":
        return GRAPH_TOKENS
    state = STATE_BYTES * sum(weight.numel() for weight in module.parameters() if weight.requires_grad)
    return max(0, (free_bytes(device) - state) // 2 // activations(config))


def most_tokens(device: torch.device, config: Any) -> int:
    """The most tokens per training batch that are estimated to fit in half of a GPU's whole memory, for a transformer like `config`.

    A power of two, so that it is the same in each run on GPUs of one kind.
    """
    room = torch.cuda.mem_get_info(device)[1] // 2 // activations(config)
    return max(LEAST_TOKENS, 1 << max(0, room.bit_length() - 1))


def best_batch_tokens(device: torch.device, dtype: torch.dtype, gradients: bool = False) -> int:
    """The tokens per batch, padding included, at which an encoder is fastest on a CPU (measured on three); on a GPU, as many as fill it.

    With `gradients`, a batch's activations stay in memory.
    """
    if device.type == "cpu":  # fp32: fits in its caches; bf16: weights are cast and reordered once per batch
        small_batches = dtype != torch.bfloat16 or (gradients and not has_amx())  # small batches pad a training's few texts less
        return 2048 if small_batches else 8192
    return GRAPH_TOKENS if gradients else 65536


def compute_dtype(device: torch.device, precision: Precision) -> torch.dtype:
    """bfloat16 if `precision` asks for it and the hardware multiplies matrices in it, else float32.

    On a CPU without such units, bf16 products are many times slower than fp32 ones (50 x on AVX2), so fp32 is used, which is also more
    exact. The same holds where the environment forbids these units to oneDNN, which torch uses. Results are the same, bit for bit, only on
    the same kind of hardware.
    """
    if precision == "fp32":
        return torch.float32
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
    limit = next((os.environ[name].upper() for name in ISA_LIMITS if os.environ.get(name)), "")
    native = (has_amx() or torch.cpu._is_avx512_bf16_supported()) and limit not in WITHOUT_BF16
    return torch.bfloat16 if native else torch.float32
