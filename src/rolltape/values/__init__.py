"""Values in the journal: what is recorded comes back equal and of the same types, without secrets, and written once."""

from rolltape.values.codec import Encoded, decode, encode, learn
from rolltape.values.encoder import DEPTH_MAX, INLINE_BYTES_MAX, INT_DIGITS_MAX
from rolltape.values.fingerprint import difference, fingerprint
from rolltape.values.history import Memory
from rolltape.values.names import Foreign
from rolltape.values.pointer import Position
from rolltape.values.recall import Recall
from rolltape.values.redact import DEFAULT, DEFAULT_NAMES, REDACTED, Redactor

__all__ = [
    "DEFAULT",
    "DEFAULT_NAMES",
    "DEPTH_MAX",
    "INLINE_BYTES_MAX",
    "INT_DIGITS_MAX",
    "REDACTED",
    "Encoded",
    "Foreign",
    "Memory",
    "Position",
    "Recall",
    "Redactor",
    "decode",
    "difference",
    "encode",
    "fingerprint",
    "learn",
]
