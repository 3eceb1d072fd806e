"""Lists, filters and sorts over a run without reading it: a cache that is derived from the journal."""

from rolltape.index.catalogue import SORTS, Catalogue, Query, is_damaged
from rolltape.index.marks import Marked, lineage_of
from rolltape.index.place import places
from rolltape.index.rows import STEPS, Row
from rolltape.index.update import Updater

__all__ = ["SORTS", "STEPS", "Catalogue", "Marked", "Query", "Row", "Updater", "is_damaged", "lineage_of", "places"]
