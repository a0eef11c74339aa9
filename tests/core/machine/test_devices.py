"""The only place that chooses device and arithmetic, on every kind of hardware, simulated by its probes."""

import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tasks.core.errors import UserError, one_line_errors
from tasks.core.machine import devices
from tasks.core.machine.devices import best_batch_tokens, choose_device, compute_dtype, kept_tokens, move_module
from tasks.core.params.runtime import Runtime

CPU, GPU = torch.device("cpu"), torch.device("cuda:0")


def set_hardware(monkeypatch: pytest.MonkeyPatch, amx: bool = False, avx512: bool = False, gpus: int = 0, gpu_bf16: bool = False) -> None:
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512)
    for limit in devices.ISA_LIMITS:
        monkeypatch.delenv(limit, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)

    def is_bf16_supported(including_emulation: bool = True) -> bool:
        return including_emulation or gpu_bf16  # every GPU emulates it

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", is_bf16_supported)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(torch.cuda, "get_arch_list", list)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))


@pytest.mark.parametrize(
    ("device", "probes", "expected"),
    [
        (CPU, {}, torch.float32),  # AVX2: bf16 would be 50 times slower
        (CPU, {"avx512": True}, torch.bfloat16),
        (CPU, {"amx": True}, torch.bfloat16),
        (CPU, {"gpus": 1, "gpu_bf16": True}, torch.float32),
        (GPU, {"gpus": 1, "gpu_bf16": True}, torch.bfloat16),
        (GPU, {"gpus": 1, "amx": True}, torch.float32),  # a GPU that only emulates bf16
    ],
)
def test_bf16_is_used_only_if_the_hardware_supports_it(
    device: torch.device, probes: dict[str, Any], expected: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_hardware(monkeypatch, **probes)
    assert compute_dtype(device, "bf16") == expected
    assert compute_dtype(device, "fp32") == torch.float32


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("ONEDNN_MAX_CPU_ISA", "AVX2", torch.float32),
        ("DNNL_MAX_CPU_ISA", "avx2", torch.float32),
        ("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_VNNI", torch.float32),
        ("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16", torch.bfloat16),
        ("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_AMX", torch.bfloat16),
        ("ONEDNN_MAX_CPU_ISA", "", torch.bfloat16),
    ],
)
def test_bf16_needs_a_onednn_that_may_use_it(name: str, value: str, expected: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    set_hardware(monkeypatch, amx=True, avx512=True, gpus=1, gpu_bf16=True)
    monkeypatch.setenv(name, value)
    assert compute_dtype(CPU, "bf16") == expected
    assert compute_dtype(GPU, "bf16") == torch.bfloat16


def test_onednn_takes_the_first_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    set_hardware(monkeypatch, avx512=True)
    monkeypatch.setenv("DNNL_MAX_CPU_ISA", "AVX2")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "ALL")
    assert compute_dtype(CPU, "bf16") == torch.bfloat16


@pytest.mark.parametrize(("amx", "trained"), [(False, 2048), (True, 8192)])
def test_a_training_has_smaller_batches_where_products_take_most_of_its_time(
    amx: bool, trained: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_hardware(monkeypatch, amx=amx, avx512=True)
    assert best_batch_tokens(CPU, torch.bfloat16, gradients=True) == trained
    assert best_batch_tokens(CPU, torch.bfloat16) == 8192
    assert best_batch_tokens(CPU, torch.float32, gradients=True) == best_batch_tokens(CPU, torch.float32) == 2048


@pytest.mark.parametrize(
    ("device", "gpus", "expected"), [("auto", 0, "cpu"), ("auto", 2, "cuda"), ("cpu", 2, "cpu"), ("cuda:1", 2, "cuda:1")]
)
def test_the_requested_device_is_chosen(device: str, gpus: int, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    set_hardware(monkeypatch, gpus=gpus)
    assert choose_device(Runtime(device=device)) == torch.device(expected)
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.is_deterministic_algorithms_warn_only_enabled() == (expected == "cpu")
    torch.use_deterministic_algorithms(True, warn_only=True)  # for the tests after this one


def test_a_process_that_others_compute_for_makes_no_context(monkeypatch: pytest.MonkeyPatch) -> None:
    set_hardware(monkeypatch, gpus=2)
    calls: list[int] = []
    monkeypatch.setattr(torch.cuda, "set_device", calls.append)
    assert choose_device(Runtime(device="cuda"), begin=False) == torch.device("cuda")
    assert calls == []
    choose_device(Runtime(device="cuda"))
    assert calls == [0]
    torch.use_deterministic_algorithms(True, warn_only=True)


@pytest.mark.parametrize(("device", "gpus"), [("cuda", 0), ("cuda:2", 2)])
def test_a_missing_device_is_refused(device: str, gpus: int, monkeypatch: pytest.MonkeyPatch) -> None:
    set_hardware(monkeypatch, gpus=gpus)
    with pytest.raises(UserError, match=f"device {device}: found {gpus} GPUs"):
        choose_device(Runtime(device=device))


def test_gpus_with_an_old_driver_are_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """NVML counts them, and CUDA cannot use them: `device: cuda` said that 2 were found, and `auto` took the CPU without a word."""
    set_hardware(monkeypatch)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    reason = "found 2 GPUs that this PyTorch (CUDA 13.0) cannot use, because their driver is too old or does not work; update it"
    with pytest.raises(UserError, match=rf"^runtime.yaml: device cuda:1: {re.escape(reason)}"):
        choose_device(Runtime(device="cuda:1"))
    assert choose_device(Runtime()) == CPU
    error = capsys.readouterr().err
    assert (
        error.startswith(f"runtime.yaml: device auto: {reason}") and error.endswith("; computing on the CPU\n") and error.count("\n") == 1
    )
    assert choose_device(Runtime(device="cpu")) == CPU
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("capability", "codes", "fits"),
    [
        ((7, 0), ["sm_75", "sm_80", "sm_90a", "compute_120"], False),
        ((8, 6), ["sm_75", "sm_80", "sm_90"], True),  # code of 8.0 runs on 8.6
        ((7, 5), ["sm_80", "sm_90"], False),
        ((12, 1), ["sm_80", "compute_90"], True),  # compiled when it is loaded
        ((12, 1), ["sm_80", "sm_90"], False),
    ],
)
def test_a_gpu_that_pytorch_has_no_code_for_is_refused(
    capability: tuple[int, int], codes: list[str], fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first kernel ended every stage in a traceback."""
    set_hardware(monkeypatch, gpus=1)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: codes)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Tesla")
    if fits:
        choose_device(Runtime())
    else:
        limits = {"sm_75": ("7.5", "12.0"), "sm_80": ("8.0", "9.0")}[codes[0]]
        own, oldest, newest = (re.escape(text) for text in (f"{capability[0]}.{capability[1]}", *limits))
        with pytest.raises(UserError, match=rf"found Tesla \(compute capability {own}\), expected {oldest} to {newest}, for which"):
            choose_device(Runtime())
    torch.use_deterministic_algorithms(True, warn_only=True)


@pytest.mark.parametrize(("value", "expected"), [(None, ":4096:8"), (":16:8", ":16:8"), (":4096:2:16:8", ":4096:8"), (":0:0", ":4096:8")])
def test_cublas_gets_a_reproducible_workspace(value: str | None, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(devices.CUBLAS, raising=False)
    if value:
        monkeypatch.setenv(devices.CUBLAS, value)
    choose_device(Runtime(device="cpu"))
    assert os.environ[devices.CUBLAS] == expected


def test_nothing_computes_in_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    choose_device(Runtime(device="cpu"))
    assert not torch.backends.cudnn.allow_tf32
    assert not torch.backends.cuda.matmul.allow_tf32


def test_threads_are_set_only_if_given(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    monkeypatch.setattr(devices, "available_cores", torch.get_num_threads)
    monkeypatch.setattr(torch, "set_num_threads", counts.append)
    choose_device(Runtime(device="cpu"))
    choose_device(Runtime(device="cpu", threads=3))
    assert counts == [3]


def test_a_quota_bounds_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", counts.append)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    for quota in (64, 3):
        monkeypatch.setattr(devices, "available_cores", lambda quota=quota: quota)
        choose_device(Runtime(device="cpu"))
    choose_device(Runtime(device="cpu", threads=5))
    assert counts == [3, 5]


MAPPED = """
import ctypes
from tasks.core.machine.devices import keep_memory
from tasks.core.machine.processes import return_memory
fields = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
Info = type("Info", (ctypes.Structure,), {"_fields_": [(name, ctypes.c_size_t) for name in fields]})
libc = ctypes.CDLL(None)
libc.mallinfo2.restype, libc.malloc.restype, libc.free.argtypes = Info, ctypes.c_void_p, [ctypes.c_void_p]
def mapped(mebibytes):
    # malloc maps a block, and by default learns from the free not to map another of this size
    before = libc.mallinfo2().hblks
    block = libc.malloc(ctypes.c_size_t(mebibytes * 2**20))
    found = libc.mallinfo2().hblks - before
    libc.free(block)
    return found
print(return_memory(), mapped(2), mapped(2), keep_memory(), mapped(30))
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="needs glibc's malloc")
def test_memory_is_returned_by_what_passes_on_texts_and_kept_by_what_computes() -> None:
    root = Path(__file__).resolve().parents[3]
    process = subprocess.run([sys.executable, "-c", MAPPED], cwd=root, capture_output=True, text=True, check=False)
    assert process.stdout == "None 1 1 True 0\n", process


def test_a_gpu_keeps_as_many_graphs_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    module, config = torch.nn.Linear(100, 100, bias=False), SimpleNamespace(num_hidden_layers=12, hidden_size=768)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (60 << 30, 80 << 30))
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 0)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 0)
    assert kept_tokens(Runtime(), cpu, module, config) == 16384
    assert kept_tokens(Runtime(), gpu, module, config) == ((60 << 30) - 12 * 100 * 100) // 2 // (64 * 12 * 768) == 54613
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (1 << 30, 80 << 30))
    assert kept_tokens(Runtime(), gpu, module, config) == 910, "fewer than a CPU"
    with monkeypatch.context() as patch:  # a former training of this process
        patch.setattr(torch.cuda, "memory_reserved", lambda _: 60 << 30)
        patch.setattr(torch.cuda, "memory_allocated", lambda _: 1 << 30)
        assert kept_tokens(Runtime(), gpu, module, config) == ((60 << 30) - 12 * 100 * 100) // 2 // (64 * 12 * 768), "torch gives it back"
    module.weight.requires_grad = False
    assert kept_tokens(Runtime(), gpu, module, config) == (1 << 29) // (64 * 12 * 768) == 910, "what is frozen has no state"
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (1, 1))
    assert kept_tokens(Runtime(), gpu, torch.nn.Linear(100, 100), config) == 0
    for device in (cpu, gpu):
        assert kept_tokens(Runtime(graph_tokens=5), device, module, config) == 5


def test_weights_change_type_but_rotary_frequencies_do_not() -> None:
    """Rotary frequencies in bf16 are off by up to 0.4%: radians at the end of a long text."""
    module = torch.nn.Linear(2, 2)
    module.register_buffer("inv_freq", torch.tensor([0.1234567]))
    module.tied = module.weight
    placed = move_module(module, CPU, torch.bfloat16)
    assert placed is module
    assert module.weight.dtype == module.bias.dtype == torch.bfloat16
    assert module.tied is module.weight
    assert torch.equal(module.inv_freq, torch.tensor([0.1234567]))


def test_a_full_gpu_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    words = "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 139.80 GiB of which 1 MiB is free."
    with pytest.raises(SystemExit, match="2"), one_line_errors():
        raise torch.OutOfMemoryError(words)
    stderr = capsys.readouterr().err
    assert stderr.startswith("retemper: CUDA out of memory. Tried to allocate 2.50 GiB: lower batch_tokens")
    assert stderr.count("\n") == 1
    with pytest.raises(SystemExit, match="2"), one_line_errors():
        raise RuntimeError("CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation' in NVIDIA's pages")  # torch.cuda.set_device
    assert capsys.readouterr().err.startswith("retemper: CUDA error: out of memory: lower batch_tokens")
    with pytest.raises(SystemExit, match="2"), one_line_errors():
        raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")
    assert capsys.readouterr().err.startswith("retemper: CUDA error: CUBLAS_STATUS_ALLOC_FAILED: lower batch_tokens")
    with pytest.raises(RuntimeError, match="boom"), one_line_errors():
        raise RuntimeError("boom")


@pytest.mark.parametrize(
    "name", ["ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ONEDNN_DEFAULT_FPMATH_MODE", "MKL_CBWR"]
)
def test_a_limit_in_the_environment_is_other_hardware(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products have other bits under the limit, so no checkpoint or shard made without it may be reused."""
    monkeypatch.delenv(name, raising=False)
    before = devices.hardware(CPU)
    monkeypatch.setenv(name, "")
    assert devices.hardware(CPU) == before
    monkeypatch.setenv(name, "AVX2")
    assert devices.hardware(CPU).split(", ") == [*before.split(", ")[:2], f"{name}=AVX2", before.split(", ")[2]]
