"""A folder of Hugging Face weights, read rows by rows: each rank reads what it holds.

What the folder must hold is known from the model, so names that are missing or left over and shapes
that differ are said before a number is read.  Pickled files are never opened: they can run code.
Source: the layout of folders that `transformers` writes, and of those that stand on its hub.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from planner.model.shape import ModelShape
from planner.model.tensors import Tensor
from planner.wording import counted, reason_of
from worker.errors import InvalidWeights
from worker.weights.hugging_face.families import Family
from worker.weights.hugging_face.tensors import StoredTensor, stored_tensors
from worker.weights.sources import DTYPES, Box, OpenFiles, narrowed, whole

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")
BLOCK_NUMBERS = 2**21  # that are looked at together
FP8_SCALE = "_scale_inv"  # ends the names of the scales of a folder in fp8


class Misfit(NamedTuple):
    """Differences between a folder and the model.

    Attributes:
        missing: names that no file holds.
        left_over: names that the model does not have.
        wrong: tensors of another shape or of a type that is not read, an error each.
    """

    missing: tuple[str, ...]
    left_over: tuple[str, ...]
    wrong: tuple[InvalidWeights, ...]


class _Place(NamedTuple):
    """Where a tensor is.

    Attributes:
        file: in the folder.
        key: its name there, or that of the tensor of all experts that holds it.
        expert: which of that tensor it is; None: the tensor is its own.
        first: its first row of that expert.
    """

    file: str
    key: str
    expert: int | None = None
    first: int = 0


class WeightsFolder:
    """The weights of a model in a folder; see `Source`.

    Attributes:
        model: that it must hold.
        stored: its tensors.
        misfit: what does not fit; nothing is to be read then.
        left_out: names of blocks behind the model's last one, which are not read.

    Args:
        folder: of the files.
        model: that they must fit.
        family: whose names they have.

    Raises:
        InvalidWeights: it has no weights, or a file or the index cannot be read.
    """

    def __init__(self, folder: Path, model: ModelShape, family: Family) -> None:
        self._folder, self.model = folder, model
        self._files = OpenFiles(folder)
        self.stored = stored_tensors(model, family)
        self._keys: dict[str, _Place] = {}
        held = self._held()
        self.left_out = tuple(name for name in held if _is_behind(name, model, family))
        read = {name: file for name, file in held.items() if name not in self.left_out}
        left_over = self._match(read, family)
        missing = tuple(t.name for t in self.stored if t.name not in self._keys)
        faults = (self._fault(t) for t in self.stored if t.name in self._keys)
        self.misfit = Misfit(missing, left_over, tuple(fault for fault in faults if fault))
        # In which of their tensors each of ours is, and its first row there.
        self._places = dict(_places(self.stored))
        self._experts = {(t.ours[0].name, t.expert): t for t in self.stored}

    @property
    def fault(self) -> InvalidWeights | None:
        """The error for what does not fit, whose field is the tensor; None if all does."""
        missing, left_over, wrong = self.misfit
        scales = [name for name in (*left_over, *self.left_out) if name.endswith(FP8_SCALE)]
        if scales:
            return InvalidWeights(
                f"weights folder {self._folder} holds weights in fp8, with scales beside them; "
                "convert it to bf16, as DeepSeek's fp8_cast_bf16.py does, and give that folder",
                field=scales[0],
                code="Unsupported",
            )
        if missing or left_over:
            of, found = f"of model {self.model.name!r}", []
            if missing:
                found.append(f"lacks {_listed(missing)} {of}")
            if left_over:
                found.append(f"holds {_listed(left_over)} not {'of it' if missing else of}")
            return InvalidWeights(
                f"weights folder {self._folder} {' and '.join(found)}; give the folder of "
                "one model",
                field=(*missing, *left_over)[0],
                code="Mismatch" if left_over else "Missing",
            )
        return wrong[0] if wrong else None

    def not_finite(self) -> InvalidWeights | None:
        """The error for the first weight that is no finite number; None if all are. Reads all."""
        for tensor in self.stored:
            rows, at = tensor.shape[0], self._keys[tensor.name]
            step = max(1, rows * BLOCK_NUMBERS // max(1, tensor.numel))
            for start in range(0, rows, step):
                box = narrowed(whole(tensor.shape), 0, start, min(rows, start + step))
                if not self._box(at, box).isfinite().all():
                    file, key = at.file, at.key
                    return InvalidWeights(
                        f"{key!r} in {self._folder / file} holds a number that is not finite; a "
                        "job that starts from it diverges at its first step, so give other weights",
                        field=key,
                        code="OutOfRange",
                    )
        return None

    @property
    def files(self) -> tuple[str, ...]:
        """The files that hold the model."""
        return tuple(sorted({place.file for place in self._keys.values()}))

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """In which the weights are kept, each once; of those that are fp32 anyway none."""
        kept = {self._part(tensor).get_dtype() for tensor in self.stored if not tensor.is_fp32}
        return tuple(DTYPES[name] for name in sorted(kept))

    def read(self, tensor: Tensor, box: Box) -> torch.Tensor:
        """See `Source`."""
        if tensor.experts:
            experts = range(tensor.experts)[box[0]]
            return torch.stack([self._expert(tensor, expert, box[1:]) for expert in experts])
        stored, first = self._places[tensor.name]
        theirs = narrowed(box, 0, box[0].start + first, box[0].stop + first)
        at = self._keys[stored.name]
        return self._box(at, theirs[::-1]).T if stored.is_transposed else self._box(at, theirs)

    def _expert(self, tensor: Tensor, expert: int, box: Box) -> torch.Tensor:
        """A box of one expert of a stack."""
        return self._box(self._keys[self._experts[tensor.name, expert].name], box)

    def _box(self, at: _Place, box: Box) -> torch.Tensor:
        """A box of a tensor, as its file holds it."""
        if at.expert is None:
            return self._files.part(at.file, at.key, box)
        rows = slice(box[0].start + at.first, box[0].stop + at.first)
        stacked = (slice(at.expert, at.expert + 1), rows, *box[1:])
        return self._files.part(at.file, at.key, stacked)[0]

    def first_rows(
        self, tensor: Tensor, start: int, stop: int, experts: range | None = None
    ) -> torch.Tensor:
        """Rows [start, stop) of a tensor along its row dimension, fp32, in memory of its own.

        Of a stack of experts those of `experts`; all, unless they are given.  Padded rows are zero.
        """
        dim, shape, box = tensor.row_dim, list(tensor.shape), whole(tensor.shape)
        shape[dim] = stop - start
        if tensor.experts and experts is not None:
            shape[0], box = len(experts), narrowed(box, 0, experts.start, experts.stop)
        found = torch.zeros(shape)
        held = min(stop, tensor.rows - tensor.padding)
        if start < held:
            box = narrowed(box, dim, start, held)
            found.narrow(dim, 0, held - start).copy_(self.read(tensor, box))
        return found

    def _match(self, held: Mapping[str, str], family: Family) -> tuple[str, ...]:
        """Find what the model has among what the files hold; answers the names left over."""
        wanted = _spellings(self.stored)
        left_over = []
        for key, file in held.items():
            spelt = wanted.get(key) or wanted.get(family.prefix + key, ())
            if spelt and not any(name in self._keys for name, _ in spelt):
                self._keys |= {name: _Place(file, key, *where) for name, where in spelt}
            elif not self._is_ignored(key, family):
                left_over.append(key)
        return tuple(left_over)

    def _is_ignored(self, key: str, family: Family) -> bool:
        """Masks and the like of old files, and the second copy of a tied head."""
        return key.endswith(family.buffers or ("\0",)) or (
            self.model.tied_head and key == "lm_head.weight"
        )

    def _held(self) -> Mapping[str, str]:
        """{key: file} of everything that the folder's files hold."""
        index = self._folder / INDEX
        if index.is_file():
            return _read_index(index)
        if (self._folder / SINGLE).is_file():
            return dict.fromkeys(self._files.file(SINGLE).keys(), SINGLE)
        raise _none_in(self._folder)

    def _part(self, tensor: StoredTensor) -> Any:
        """A tensor of a file; no number of it is read.

        Raises:
            InvalidWeights: the file lacks it, whatever the index says.
        """
        file, key, *_ = self._keys[tensor.name]
        opened = self._files.file(file)
        if key not in opened.keys():  # noqa: SIM118, it is no mapping
            raise InvalidWeights(
                f"weights file {self._folder / file} lacks {key!r}, which {INDEX} says it holds; "
                "copy the folder again",
                field=key,
                code="Damaged",
            )
        return opened.get_slice(key)

    def _fault(self, tensor: StoredTensor) -> InvalidWeights | None:
        file, key, expert, _ = self._keys[tensor.name]
        part = self._part(tensor)
        shape, dtype = tuple(part.get_shape()), part.get_dtype()
        wanted = tensor.shape if expert is None else tensor.stacked_shape
        if shape != wanted:
            return InvalidWeights(
                f"{key!r} in {self._folder / file} has shape {list(shape)}, the model "
                f"{self.model.name!r} wants {list(wanted)}; give the config.json that "
                "belongs to the weights",
                field=key,
                code="Mismatch",
            )
        if dtype not in DTYPES:
            return InvalidWeights(
                f"{key!r} in {self._folder / file} is of type {dtype}; weights may be "
                f"{', '.join(DTYPES)}, so save the model in one of these",
                field=key,
                code="Unsupported",
            )
        return None


def open_weights(folder: Path, model: ModelShape, family: Family) -> WeightsFolder:
    """The weights of a model; all of them can be read.

    Raises:
        InvalidWeights: they do not fit the model, or cannot be read.
    """
    found = WeightsFolder(folder, model, family)
    if found.fault is not None:
        raise found.fault
    return found


_Where = tuple[()] | tuple[int, int]  # expert and first row within a tensor of all experts


def _spellings(
    stored: tuple[StoredTensor, ...],
) -> Mapping[str, Sequence[tuple[str, _Where]]]:
    """{a name that files may have: the tensors in it, and where}."""
    found: dict[str, list[tuple[str, _Where]]] = {}
    for tensor in stored:
        for name in (tensor.name, tensor.also):
            if name:
                found.setdefault(name, []).append((tensor.name, ()))
        if tensor.stack is not None and tensor.expert is not None:
            where = (tensor.expert, tensor.stack.part * tensor.shape[0])
            found.setdefault(tensor.stack.name, []).append((tensor.name, where))
    return found


def _places(stored: tuple[StoredTensor, ...]) -> Iterator[tuple[str, tuple[StoredTensor, int]]]:
    for tensor in stored:
        first = 0
        for ours, rows in zip(tensor.ours, tensor.rows, strict=True):
            yield ours.name, (tensor, first)
            first += rows


def _is_behind(name: str, model: ModelShape, family: Family) -> bool:
    """Whether a name is of a block behind the last one, of a family whose files may have some."""
    before, _, after = family.blocks.partition("{}")
    number = name.removeprefix(before).partition(after)[0]
    is_block = name.startswith(before) and number.isdecimal()
    return family.has_more_blocks and is_block and int(number) >= model.layers


def _listed(names: Sequence[str]) -> str:
    """`1 tensor (a)`, `3 tensors (a and 2 more)`; `heddle weights check` lists all of them."""
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{counted(len(names), 'tensor')} ({names[0]}{more})"


def _read_index(path: Path) -> Mapping[str, str]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        files = {str(key): str(file) for key, file in found.items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidWeights(
            f"weights index {path} cannot be read ({reason_of(error)}); it must hold a "
            "weight_map, so copy it again",
            field=INDEX,
            code="Unreadable",
        ) from None
    for file in files.values():
        if Path(file).name != file or not file.endswith(".safetensors"):
            raise InvalidWeights(
                f"weights index {path} names the file {file!r}; only safetensors files of the same "
                "folder are read",
                field=INDEX,
                code="Malformed",
            )
    return files


def _none_in(folder: Path) -> InvalidWeights:
    """The error for a folder without weights to read."""
    if not folder.is_dir():
        return InvalidWeights(
            f"weights folder {folder} is not there; give the folder of a Hugging Face model",
            field="folder",
            code="Missing",
        )
    pickled = sorted(path.name for ending in PICKLED for path in folder.glob(ending))
    if pickled:
        return InvalidWeights(
            f"weights folder {folder} holds {pickled[0]}, which is pickled and could run any code; "
            'convert it to safetensors where you trust it: python -c "from '
            f"transformers import AutoModelForCausalLM as M; M.from_pretrained('{folder}')"
            f".save_pretrained('{folder}')\"",
            field=pickled[0],
            code="Unsupported",
        )
    return InvalidWeights(
        f"weights folder {folder} holds neither {SINGLE} nor {INDEX}; give a Hugging Face folder",
        field=SINGLE,
        code="Missing",
    )
