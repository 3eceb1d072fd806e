"""Where a run lives: six plain operations, and the local directory that implements them."""

from rolltape.store.local import LocalStore
from rolltape.store.protocol import FileSystem, Store

__all__ = ["FileSystem", "LocalStore", "Store"]
