"""numba's type for a pointer to a named tuple, by the public interface for extensions.

`planner.estimator.by_reference` says which tuples are handed over so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

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

from planner.estimator.by_reference import Referenced

Value = TypeVar("Value")


class Reference(Type):
    """A pointer to a named tuple.

    Attributes:
        inner: numba's own type of the tuple.
    """

    def __init__(self, inner: BaseNamedTuple) -> None:
        """Refer to a tuple of that type."""
        self.inner = inner
        super().__init__(f"Reference({inner.name})")


def _type_of(value: Referenced, context: Any) -> Reference | None:
    fields = [typeof_impl(field, context) for field in value]
    if None in fields:
        return None
    inner = [field.inner if isinstance(field, Reference) else field for field in fields]
    return Reference(BaseTuple.from_types(inner, type(value)))


typeof_impl.register(Referenced, _type_of)


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
