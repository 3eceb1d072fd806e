"""The log of a run: what was acknowledged is there, what is damaged is found, the newest attempt wins."""

from rolltape.journal.attempt import AttemptLog, rely_on
from rolltape.journal.compress import CompressReport, compress
from rolltape.journal.expand import StoryValues
from rolltape.journal.lineage import Lineage, Story
from rolltape.journal.reader import Damage, Follower, Line, OnDamage, Reader, SegmentScan
from rolltape.journal.survey import Place, open_reader, story_of, survey
from rolltape.journal.verify import verify, verify_claims
from rolltape.journal.writer import Writer, WriterConfig, has_ended_here, open_writer

__all__ = [
    "AttemptLog",
    "CompressReport",
    "Damage",
    "Follower",
    "Line",
    "Lineage",
    "OnDamage",
    "Place",
    "Reader",
    "SegmentScan",
    "Story",
    "StoryValues",
    "Writer",
    "WriterConfig",
    "compress",
    "has_ended_here",
    "open_reader",
    "open_writer",
    "rely_on",
    "story_of",
    "survey",
    "verify",
    "verify_claims",
]
