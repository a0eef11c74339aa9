"""A GPU that is not there: tensors that say they are on `cuda:0` and hold real values in ordinary memory.

Within `fake_gpu()`, a tensor moved to GPU is a `FakeCuda`. Every operation on one runs on the CPU, so whole stages compute real numbers,
and the errors of a real GPU are raised: an operation on tensors of two devices, or numpy on a GPU's tensor. What makes a program
wait for a GPU (a value or a size read from it, ordinary memory sent to it, places written by index) is counted.
"""

import functools
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.nn.attention.varlen
from torch.nn.utils import clip_grad
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from tasks.core.retrieval.gpu import reading

GPU = torch.device("cuda:0")
FREE = 8 << 30  # bytes
aten = torch.ops.aten
SIZES = {  # operations whose result's size is read back
    aten.nonzero.default,
    aten.masked_select.default,
    aten._unique2.default,
    aten.unique_consecutive.default,
    aten.unique_dim.default,
    aten.repeat_interleave.Tensor,
    aten.bincount.default,
    aten.equal.default,
}
EITHER = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default, aten._index_put_impl_.default}  # CPU indices are copied
COPIES = {aten.copy_.default, aten._to_copy.default}
SORTED = {  # under deterministic algorithms all of them are index_put, which reads the largest and the smallest index back
    aten.index_put_.default,
    aten.index_put.default,
    aten.index_add.default,
    aten.index_add_.default,
    aten.index_copy.default,
    aten.index_copy_.default,
    aten.scatter.src,
    aten.scatter_.src,
    aten.scatter_add.default,
    aten.scatter_add_.default,
}


UNORDERED: dict[Any, Callable[..., bool]] = {  # when CUDA has no deterministic form (torch.use_deterministic_algorithms)
    aten.cumsum.default: lambda x, *_: x.is_floating_point(),
    aten.cumsum_.default: lambda x, *_: x.is_floating_point(),
    aten.bincount.default: lambda _, weights=None, *__: weights is not None,
    aten.scatter_reduce.two: lambda *args: args[4] == "prod",
    **dict.fromkeys((aten.median.dim, aten.put_.default, aten.histc.default, aten.nll_loss2d_forward.default), lambda *_: True),
}


class FakeCuda(torch.Tensor):
    """A tensor that says it is on a GPU."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls: type, inner: torch.Tensor) -> Any:
        wrapper = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, inner.shape, strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype, device="cpu"
        )
        wrapper.held = inner
        return wrapper

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return GPU

    @property
    def data(self) -> torch.Tensor:  # type: ignore[override]
        return self.detach()

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        with torch._C.DisableTorchFunctionSubclass():
            torch.Tensor.data.__set__(self, value)  # type: ignore[attr-defined]
        self.held = value.held if isinstance(value, FakeCuda) else value  # a parameter that a module moves back stays one of these

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True

    @property
    def is_cpu(self) -> bool:  # type: ignore[override]
        return False

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A copy without the gradient, as of a parameter on a GPU."""
        copied = FakeCuda(self.held.detach().clone()).requires_grad_(self.requires_grad)
        copied._is_param = getattr(self, "_is_param", False)
        return memo.setdefault(id(self), copied)

    def record_stream(self, _: Any) -> None:
        pass

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["held"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, torch.Tensor], *_: Any) -> "FakeCuda":
        return FakeCuda(inner["held"])

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"FakeCuda({self.held!r})"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.cpu:
            return ToCpu.apply(args[0])
        if func is torch.Tensor.to:
            return _move(*args, **kwargs)
        if func is torch.Tensor.type_as:
            return _move(args[0], args[1].device, args[1].dtype)
        if func in (torch.Tensor.untyped_storage, torch.Tensor.storage, torch.Tensor.data_ptr):
            return func(args[0].held)
        if func is torch.nn.functional.one_hot:  # on a CPU it reads values first
            return (args[0].unsqueeze(-1) == torch.arange(args[1], device=GPU)).long()
        with torch._C.DisableTorchFunctionSubclass():  # results are wrapped below, where it is known on which device they are
            return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {}, [])


class ToCpu(torch.autograd.Function):
    """torch believes that a FakeCuda is on the CPU already, so moving one there is done here."""

    @staticmethod
    def forward(_: Any, tensor: FakeCuda) -> torch.Tensor:  # type: ignore[override]
        return aten._to_copy.default(tensor, device=torch.device("cpu"))

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        return gradient.to(GPU)


def _move(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """`tensor.to(...)` where a FakeCuda is moved, or named as the example."""
    if args and isinstance(args[0], torch.Tensor):
        device, dtype = args[0].device, args[0].dtype
    else:
        kwargs.pop("copy", None)  # a move from or to the stand-in always copies
        device, dtype, _, _ = torch._C._nn._parse_to(*args, **kwargs)
    if device is not None and torch.device(device).type != tensor.device.type:
        tensor = tensor.cpu() if isinstance(tensor, FakeCuda) else tensor.to(GPU)
    return (
        tensor
        if dtype is None or tensor.dtype == dtype
        else tensor.to(dtype=dtype)
        if not isinstance(tensor, FakeCuda)
        else tensor.type(dtype)
    )


def compute(func: Any, args: Any, kwargs: dict[str, Any], waited: list[str]) -> Any:
    """The result of an operation; what it waits for is added to `waited`."""
    leaves, _ = tree_flatten((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    ours = [leaf for leaf in tensors if isinstance(leaf, FakeCuda)]
    others = [leaf for leaf in tensors if not isinstance(leaf, FakeCuda)]
    target = kwargs.get("device")
    name = str(func)
    if target is not None:
        kwargs = kwargs | {"device": torch.device("cpu")}
    if "pin_memory" in kwargs:
        kwargs = kwargs | {"pin_memory": False}
    on_gpu = bool(ours) if target is None else torch.device(target).type == "cuda"
    in_backward = torch._C._current_graph_task_id() != -1
    if (in_backward and (ours or not tensors)) or (ours and func not in COPIES):
        on_gpu = True  # torch itself names the CPU, where it believes these tensors to be
    if func in COPIES:
        to_gpu = isinstance(args[0], FakeCuda) if func is aten.copy_.default else on_gpu
        from_gpu = isinstance(args[1] if func is aten.copy_.default else args[0], FakeCuda)
        on_gpu = to_gpu
        overlapped = func is aten.copy_.default and len(args) > 2 and args[2]  # into pinned memory: an event tells when
        if from_gpu and not to_gpu and not overlapped:
            waited.append(f"copy {_calling_line()}")
        if to_gpu and not from_gpu and not (overlapped or kwargs.get("non_blocking")):
            waited.append(f"sent {_calling_line()}")
    elif ours:
        wide = [tensor for tensor in others if tensor.ndim]
        if func in EITHER and isinstance(args[0], FakeCuda):
            allowed = [index for index in args[1] if index is not None and not isinstance(index, FakeCuda)]
            wide = [tensor for tensor in wide if not any(tensor is index for index in allowed)]
        if wide:
            raise RuntimeError(f"{name}: expected all tensors on one device, found cuda:0 and cpu {tuple(wide[0].shape)}")
        _refuse_unordered(func, args)
        if func is aten._local_scalar_dense.default:
            waited.append(f"value {_calling_line()}")
        if func in SIZES or (func in EITHER and any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1])):
            waited.append(f"size {_calling_line()}")
        elif func in SORTED and not (in_backward and func is aten.index_put.default):  # that is autograd's own, which trusts its index
            waited.append(f"index {_calling_line()}")
    inner_args, inner_kwargs = tree_map(lambda leaf: leaf.held if isinstance(leaf, FakeCuda) else leaf, (args, kwargs))
    out = INSTEAD.get(func, func)(*inner_args, **inner_kwargs)
    if not on_gpu:
        return out
    same = {id(leaf.held): leaf for leaf in ours}  # in-place operations return their argument
    leaves, form = tree_flatten(out)
    wrapped = [same.get(id(leaf)) if id(leaf) in same else _wrap(leaf) for leaf in leaves]
    return tree_unflatten(wrapped, form)


def _refuse_unordered(func: Any, args: Any) -> None:
    """Raise what CUDA raises under deterministic algorithms, and a CPU does not."""
    strict = torch.are_deterministic_algorithms_enabled() and not torch.is_deterministic_algorithms_warn_only_enabled()
    if strict and func in UNORDERED and UNORDERED[func](*args):
        raise RuntimeError(f"{func} does not have a deterministic implementation, but you set 'torch.use_deterministic_algorithms(True)'")


def _multiply(left: torch.Tensor, right: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A product with sums of another type, which a CPU does not offer."""
    return left.to(dtype) @ right.to(dtype)


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *args: Any, **_: Any) -> Any:
    """Attention of rows of many lengths, row by row."""
    assert q.dtype in (torch.bfloat16, torch.float16)
    parts = [torch.nn.functional.scaled_dot_product_attention(*row) for row in _rows(q, k, v, *args[:4])]
    return torch.cat([part.transpose(0, 1) for part in parts]), torch.empty(q.shape[1], len(q)), torch.zeros(2, dtype=torch.uint64)


def _flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *args: Any) -> Any:
    """The same for a training: the seed of its dropout is drawn from the generator, and returned for the backward pass."""
    seed = torch.randint(2**31, (2,))
    out = [(kept * shares) @ v_ for shares, kept, (_, _, v_) in _shares(_rows(q, k, v, *args[:4]), args[4], seed)]
    return torch.cat([part.transpose(0, 1) for part in out]).to(q.dtype), torch.empty(q.shape[1], len(q)), seed, seed, torch.empty(0)


def _flash_backward(gradient: torch.Tensor, *args: Any) -> Any:
    """Its gradients, written out: below autograd, no graph is recorded."""
    q, k, v, _, _, query_ends, ends, most, longest, dropout, _, seed, _ = args
    parts, at = [], 0
    for shares, kept, (q_, k_, v_) in _shares(_rows(q, k, v, query_ends, ends, most, longest), dropout, seed):
        g, scale = gradient[at : at + q_.shape[1]].transpose(0, 1).float(), q.shape[-1] ** -0.5
        by_share = kept * (g @ v_.mT)
        by_score = scale * shares * (by_share - (by_share * shares).sum(-1, keepdim=True))
        parts.append((by_score @ k_, by_score.mT @ q_, (kept * shares).mT @ g))
        at += q_.shape[1]
    return tuple(torch.cat([part.transpose(0, 1) for part in side]).to(q.dtype) for side in zip(*parts, strict=True))


def _rows(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, query_ends: torch.Tensor, ends: torch.Tensor, most: int, longest: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Each row's queries [A, Q, W], keys, and values [A, L, W], given where those of a row begin and end, and the most of a row."""
    for bounds, tensor, largest in ((query_ends, q, most), (ends, k, longest)):
        assert bounds.dtype == torch.int32 and bounds[-1] == len(tensor) and bounds.diff().max() <= largest
    for (first_q, end_q), (first, end) in zip(pairwise(query_ends.tolist()), pairwise(ends.tolist()), strict=True):
        yield tuple(x.transpose(0, 1) for x in (q[first_q:end_q], k[first:end], v[first:end]))


def _shares(rows: Iterator[Any], dropout: float, seed: torch.Tensor) -> Iterator[Any]:
    """Of each row: attention's softmax, what dropout multiplies it with, and its queries, keys, and values, in float32."""
    generator = torch.Generator().manual_seed(int(seed[0]))
    for q_, k_, v_ in (map(torch.Tensor.float, row) for row in rows):
        shares = (q_.shape[-1] ** -0.5 * q_ @ k_.mT).softmax(-1)
        yield shares, (torch.rand(shares.shape, generator=generator) >= dropout) / (1 - dropout), (q_, k_, v_)


INSTEAD = {  # what a CPU has not
    aten.mm.dtype: _multiply,
    torch.ops.torch_attn._varlen_attn.default: _attend,
    aten._flash_attention_forward.default: _flash,
    aten._flash_attention_backward.default: _flash_backward,
}


def _calling_line() -> str:
    """The line of the library, or of ours, that runs."""
    frames = traceback.extract_stack()
    ours = [frame for frame in frames if "/tasks/" in frame.filename]
    theirs = [frame for frame in frames if "/transformers/" in frame.filename]
    shown_frames = ours[-1:] + ([theirs[-1]] if theirs and ours and frames.index(theirs[-1]) > frames.index(ours[-1]) else [])
    return " > ".join(f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno}" for frame in shown_frames)


def _wrap(leaf: Any) -> Any:
    return FakeCuda(leaf) if isinstance(leaf, torch.Tensor) else leaf


class FakeGpu(TorchDispatchMode):
    """Sends tensors made on or moved to `cuda:0` to the stand-in, and counts."""

    def __init__(self) -> None:
        super().__init__()
        self.waited: list[str] = []  # each time that the program waited for the GPU: for what, and in which line

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {}, self.waited)


@contextmanager
def fake_gpu() -> Iterator[FakeGpu]:
    """One GPU, of an Ampere's abilities, with FREE bytes of memory."""
    real = torch.autocast

    @functools.wraps(real)
    def autocast(device_type: str, *args: Any, **kwargs: Any) -> Any:
        return real("cpu" if device_type == "cuda" else device_type, *args, **kwargs)

    def empty(*size: Any, **kwargs: Any) -> torch.Tensor:  # ordinary memory, in other threads too
        return unpinned(*size, **kwargs | {"pin_memory": False})

    class event:
        def record(self, _: Any) -> None:
            pass

        def synchronize(self) -> None:
            mode.waited.append(f"event {_calling_line()}")

    def tensor(data: Any, *args: Any, device: Any = None, **kwargs: Any) -> torch.Tensor:
        """Numbers that become a tensor on the GPU, which torch makes without an operation that `mode` would see."""
        on_cpu = made(data, *args, **kwargs)
        return on_cpu if device is None else on_cpu.to(device, non_blocking=True)

    unpinned, made = torch.empty, torch.tensor
    mode = FakeGpu()
    patches = {
        "_lazy_init": lambda: None,
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "is_bf16_supported": lambda **_: True,
        "get_device_name": lambda *_: "a GPU that is not there",
        "get_device_capability": lambda *_: (8, 0),
        "get_arch_list": lambda: ["sm_80", "sm_90"],
        "get_device_properties": lambda *_: SimpleNamespace(total_memory=2 * FREE),
        "mem_get_info": lambda *_: (FREE, 2 * FREE),
        "set_device": lambda *_: None,
        "get_rng_state": lambda *_: torch.get_rng_state(),
        "set_rng_state": lambda state, *_: torch.set_rng_state(state),
        "Event": event,
        "stream": lambda _: nullcontext(),
        "current_stream": mock.MagicMock(),
        "synchronize": lambda *_: None,
    }
    grouped = clip_grad._group_tensors_by_device_and_dtype

    def group_by_device(tensors: Any, *more: Any) -> Any:  # torch itself takes them to be on the CPU
        groups = grouped(tensors, *more)
        return {(GPU if isinstance(group[0][0][0], FakeCuda) else key[0], key[1]): group for key, group in groups.items()}

    with (
        mock.patch.object(clip_grad, "_group_tensors_by_device_and_dtype", group_by_device),
        mock.patch.multiple(torch.cuda, **patches),
        mock.patch.object(reading, "copy_stream", mock.MagicMock()),
        mock.patch.object(torch.accelerator, "current_accelerator", lambda **_: None),  # a CUDA build asks its driver
        mock.patch.object(torch.cuda, "is_current_stream_capturing", lambda: False),  # and so does this, in 2.11's optimizers
        mock.patch.object(torch.Tensor, "pin_memory", lambda tensor: tensor),
        mock.patch.object(torch.backends.cuda, "is_flash_attention_available", lambda: True),
        mock.patch.multiple(torch, autocast=autocast, empty=empty, tensor=tensor),
        mock.patch.object(torch, "inference_mode", torch.no_grad),  # inference tensors cannot be wrapped
        mode,
    ):
        yield mode
