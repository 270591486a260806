"""Named tuples of arrays that are handed to compiled functions as one pointer.

numba hands a named tuple over field by field, and an array as up to eleven numbers, so that a call
with all tables has hundreds of arguments, which take long to compile and to pass.  A class that is
decorated here is handed over as the address of what numba would have passed (`reference_type`);
compiled functions read its fields by name as before.  They cannot unpack or index it, or ask for
its length.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Class = TypeVar("Class", bound=type)


class Referenced(tuple[Any, ...]):
    """A tuple that knows where a copy of its fields lies, as numba keeps them.

    The copy is made when the tuple is first handed over and kept with it; its arrays stay where
    they are, so they must not be resized.
    """

    @cached_property
    def _words(self) -> NDArray[np.int64]:
        return np.array([word for field in self for word in _words_of(field)], np.int64)

    @cached_property
    def address(self) -> int:
        """Of the copy.

        Raises:
            TypeError: a field is no array, no number of eight bytes, and no tuple of these.
        """
        return int(self._words.ctypes.data)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(self)  # an address holds in one process


def by_reference(plain: Class) -> Class:
    """Decorate a named tuple of arrays, numbers and such tuples, to be handed over as a pointer."""
    names = {"__module__": plain.__module__, "__doc__": plain.__doc__}
    made: Class = type(plain)(plain.__name__, (Referenced, plain), names)
    return made


def _words_of(value: Any) -> Iterator[int]:
    """Fields that numba keeps of a value, in words of eight bytes; an array is borrowed."""
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
