"""Named tuples of arrays are handed to compiled functions as one pointer.

numba hands a named tuple over field by field, and an array as up to eleven numbers, so that a call
with all tables has hundreds of arguments, which take long to compile and to pass.  A class that is
decorated here is handed over as the address of what numba would have passed; compiled functions
read its fields by name as before.  They cannot unpack or index it, or ask for its length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numba import config
from numba.core import cgutils
from numba.core.imputils import impl_ret_borrowed
from numba.core.types import Type
from numba.core.types.containers import BaseNamedTuple, BaseTuple
from numba.core.typing.templates import AttributeTemplate
from numba.extending import (
    NativeValue,
    infer_getattr,
    intrinsic,
    lower_getattr_generic,
    models,
    register_model,
    typeof_impl,
    unbox,
)

Class = TypeVar("Class", bound=type)
Value = TypeVar("Value")

WORD_BYTES = 8


def by_reference(plain: Class) -> Class:
    """Decorate a named tuple of arrays, numbers and such tuples, to be handed over as a pointer.

    What the tuple looks like to numba is written down when it is first handed over, and kept with
    it, so its arrays must not be resized.

    Raises:
        TypeError: on the first call with a tuple that holds anything else.
    """

    class Referenced(plain):  # type: ignore[misc, valid-type]
        @cached_property
        def _words(self) -> np.ndarray[Any, np.dtype[np.int64]]:
            return np.array([word for field in self for word in _words_of(field)], np.int64)

        @cached_property
        def address(self) -> int:
            return int(self._words.ctypes.data)

        def __reduce__(self) -> tuple[Any, ...]:
            return type(self), tuple(self)  # an address holds in one process

    Referenced.__name__ = Referenced.__qualname__ = plain.__name__
    Referenced.__module__, Referenced.__doc__ = plain.__module__, plain.__doc__

    def type_of(value: Any, context: Any) -> Reference | None:
        fields = [typeof_impl(field, context) for field in value]
        if None in fields:
            return None
        inner = [field.inner if isinstance(field, Reference) else field for field in fields]
        return Reference(BaseTuple.from_types(inner, Referenced))

    typeof_impl.register(Referenced, type_of)
    return Referenced  # type: ignore[return-value]


def _words_of(value: Any) -> Iterator[int]:
    """What numba keeps of a value, in words of eight bytes; an array is borrowed."""
    if isinstance(value, np.ndarray):
        yield from (0, 0, value.size, value.itemsize, value.ctypes.data)
        yield from value.shape
        yield from value.strides
    elif isinstance(value, tuple):
        for field in value:
            yield from _words_of(field)
    elif isinstance(value, float):
        yield int(np.float64(value).view(np.int64))
    elif isinstance(value, (int, np.int64)) and not isinstance(value, bool):
        yield int(value)
    else:
        message = f"{value!r} is no array, int or float, so that it cannot be handed over"
        raise TypeError(message)


class Reference(Type):
    """A pointer to a named tuple.

    Attributes:
        inner: numba's own type of the tuple.
    """

    def __init__(self, inner: BaseNamedTuple) -> None:
        """Refer to a tuple of that type."""
        self.inner = inner
        super().__init__(f"Reference({inner.name})")


@register_model(Reference)
class _ReferenceModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, reference: Reference) -> None:
        inner = manager.lookup(reference.inner).get_value_type()
        super().__init__(manager, reference, inner.as_pointer())


@infer_getattr
class _ReferenceAttribute(AttributeTemplate):  # type: ignore[misc]
    key = Reference

    def generic_resolve(self, reference: Reference, name: str) -> Type | None:
        inner = reference.inner
        if name not in inner.fields:
            return None
        field = inner.types[inner.fields.index(name)]
        return Reference(field) if isinstance(field, BaseNamedTuple) else field


def _get_field(context: Any, builder: Any, reference: Reference, pointer: Any, name: str) -> Any:
    index = reference.inner.fields.index(name)
    field = reference.inner.types[index]
    place = cgutils.gep_inbounds(builder, pointer, 0, index)
    if isinstance(field, BaseNamedTuple):
        return place
    return impl_ret_borrowed(context, builder, field, builder.load(place))


lower_getattr_generic(Reference)(_get_field)


def _unbox(reference: Reference, value: Any, c: Any) -> NativeValue:
    place = cgutils.alloca_once(c.builder, c.context.get_value_type(reference), zfill=True)
    address = c.pyapi.object_getattr_string(value, "address")
    with c.builder.if_then(cgutils.is_not_null(c.builder, address)):
        pointer = c.pyapi.long_as_voidptr(address)
        c.builder.store(c.builder.bitcast(pointer, place.type.pointee), place)
        c.pyapi.decref(address)
    pointer = c.builder.load(place)
    return NativeValue(pointer, is_error=cgutils.is_null(c.builder, pointer))


unbox(Reference)(_unbox)


def _reference_to(_: Any, made: Type) -> tuple[Any, Callable[..., Any]] | None:
    if not isinstance(made, BaseNamedTuple):
        return None

    def store(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        return cgutils.alloca_once_value(builder, arguments[0])

    return Reference(made)(made), store


def _itself(made: Value) -> Value:
    return made


# A reference to a named tuple that a compiled function has made.  It holds while that function
# runs, so that only a function compiled into its callers may give it back.
reference_to: Callable[[Any], Any] = _itself if config.DISABLE_JIT else intrinsic(_reference_to)
