"""A device `sim` with memory of its own, in Python alone: real numbers, and the manners of CUDA.

A tensor on it wraps a host tensor that nobody else sees.  CUDA's refusals are offences here, and so
is whatever stops the host where the worker does not mean to wait: see `rules.Offence`.
Importing this module takes torch's one place for such a device, so only processes of its own do.
Source: torch.utils.backend_registration, by which Python stands in for a C++ backend.
"""

from __future__ import annotations

import weakref

import numpy as np
import torch
from torch.utils import backend_registration
from torch.utils._pytree import tree_flatten, tree_map

from tests.simulated_device.rules import RULES, is_deepspeed

backend_registration._setup_privateuseone_for_python_backend("sim")
torch.sim.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]  # recomputation asks
SIM = torch.device("sim", 0)
aten = torch.ops.aten
# One side of these may be a host tensor on CUDA too; each is a copy, and most make the host wait.
COPIES = {aten.copy_.default, aten._to_copy.default, aten._local_scalar_dense.default}
INDICES = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default}  # may be the host's
_PINNED: dict[int, weakref.ref[torch.Tensor]] = {}  # {address of a storage: its first tensor}


def pinned(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Host memory that counts as pinned as long as the answer lives."""
    made = torch.empty(shape, dtype=dtype)
    _PINNED[made.untyped_storage().data_ptr()] = weakref.ref(made)
    return made


def _is_pinned(tensor: torch.Tensor) -> bool:
    first = _PINNED.get(tensor.untyped_storage().data_ptr())
    return first is not None and first() is not None


class Simulated(torch.Tensor):
    """A tensor on the device; `numbers` holds its numbers."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, numbers: torch.Tensor) -> Simulated:
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            numbers.size(),
            strides=numbers.stride(),
            storage_offset=numbers.storage_offset(),
            dtype=numbers.dtype,
            layout=numbers.layout,
            device=SIM,
        )
        made.numbers = numbers.detach()
        return made

    def __repr__(self) -> str:
        return f"Simulated({self.numbers!r})"

    def data_ptr(self) -> int:
        return self.numbers.data_ptr()

    def tolist(self):
        _note_read("reads numbers")
        return self.numbers.tolist()

    @property
    def data(self) -> torch.Tensor:
        return self.detach()

    @data.setter
    def data(self, new: torch.Tensor) -> None:
        torch.Tensor.data.__set__(self, new)
        self.numbers = new.numbers

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _run(func, args, kwargs or {})


def numbers_of(value):
    """The numbers of a tensor of the device; all else as it is."""
    return value.numbers if isinstance(value, Simulated) else value


def _run(func, args, kwargs):
    if func is torch.ops.prim.device.default:
        return SIM
    target = kwargs.get("device")
    target = SIM if target is None else torch.device(target)
    if func in COPIES:
        _note_copy(func, args, target)
    elif func not in INDICES and not str(func).startswith("c10d."):
        tensors = [t for t in tree_flatten((args, kwargs))[0] if isinstance(t, torch.Tensor)]
        if any(not isinstance(t, Simulated) and t.dim() for t in tensors):
            RULES.offend("mixes devices", str(func))
    plain = {**tree_map(numbers_of, kwargs), **({"device": "cpu"} if "device" in kwargs else {})}
    found = (_root if func is aten.sqrt.out else func)(*tree_map(numbers_of, args), **plain)
    for given, argument in zip((*args, *kwargs.values()), func._schema.arguments, strict=False):
        if argument.alias_info is not None and argument.alias_info.is_write:
            return kwargs.get("out", given)  # in place: the tensor that was given
    return found if target.type == "cpu" else tree_map(_wrapped, found)


def _root(numbers: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    """CUDA rounds each root once; a processor's library may round some of them wrongly."""
    np.sqrt(numbers.numpy(), out=out.numpy())
    return out


def _note_copy(func, args, target) -> None:
    if func is aten._local_scalar_dense.default:
        _note_read("reads a number")
    elif func is aten.copy_.default:
        into, source = args[:2]
        if isinstance(into, Simulated) and not isinstance(source, Simulated):
            _note_write(source)
        elif isinstance(source, Simulated) and not isinstance(into, Simulated):
            _note_read("copies to the host")
    elif isinstance(args[0], Simulated) and target.type == "cpu":
        _note_read("copies to the host")


def _note_read(what: str) -> None:
    if RULES.reads:
        RULES.note("read", what)
    elif is_deepspeed():
        RULES.note("DeepSpeed waits", what)
    else:
        RULES.offend("waits", what)


def _note_write(source: torch.Tensor) -> None:
    if _is_pinned(source):
        RULES.note("copy", "to the device")
    elif is_deepspeed():
        RULES.note("DeepSpeed copies", "to the device")
    elif source.dim():
        RULES.offend("unpinned copy", "to the device")


def _wrapped(value):
    plain = isinstance(value, torch.Tensor) and not isinstance(value, Simulated)
    return Simulated(value) if plain else value


_LIBRARY = torch.library.Library("aten", "IMPL")


def _register() -> None:
    """The few functions that make a tensor on the device; all others begin with one of them."""

    def empty(size, *, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None):
        return Simulated(torch.empty(size, dtype=dtype))

    def empty_strided(size, stride, *, dtype=None, layout=None, device=None, pin_memory=None):
        return Simulated(torch.empty_strided(size, stride, dtype=dtype))

    def arange(*bounds, dtype=None, layout=None, device=None, pin_memory=None):
        return Simulated(torch.arange(*bounds, dtype=dtype))

    def copy_from(source, target, non_blocking=False):  # `torch.tensor` passes the classes by
        _note_write(source)
        numbers_of(target).copy_(numbers_of(source))
        return target

    def never(*args):  # `Simulated` is asked first; known here, it is not taken to pieces
        raise NotImplementedError

    _LIBRARY.impl("silu_backward", never, "PrivateUse1")
    _LIBRARY.impl("_copy_from", copy_from, "PrivateUse1")
    _LIBRARY.impl("empty.memory_format", empty, "PrivateUse1")
    _LIBRARY.impl("empty_strided", empty_strided, "PrivateUse1")
    for name in ("arange", "arange.start", "arange.start_step"):
        _LIBRARY.impl(name, arange, "PrivateUse1")


_register()
