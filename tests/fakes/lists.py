"""Fills a cache by whole lists, for tests that watch nothing."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from heddle_operator.kube.cache import ObjectCache
from heddle_operator.kube.client import KubeApi
from heddle_operator.kube.reflections import reflectors
from heddle_operator.kube.reflector import Reflector

_OF: WeakKeyDictionary[ObjectCache, tuple[Reflector, ...]] = WeakKeyDictionary()


async def relist(api: KubeApi, cache: ObjectCache) -> None:
    """List all that an operator reflects into its cache, once more.

    Raises:
        ApiRefused: a list was refused; what came before is taken over.
    """
    if cache not in _OF:
        _OF[cache] = reflectors(api, cache)
    for reflector in _OF[cache]:
        await reflector.list()
