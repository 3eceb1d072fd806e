"""Everything that can be checked of a run: each line, each binary value, each claim, each trajectory's order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rolltape.errors import DamagedError
from rolltape.journal import format as fmt
from rolltape.journal.epochs import epochs, read_claim
from rolltape.journal.lineage import Lineage
from rolltape.journal.reader import Damage, OnDamage, Reader
from rolltape.journal.survey import Place, open_reader, survey

if TYPE_CHECKING:
    from rolltape.store import Store


def verify_claims(reader: Reader, on_damage: OnDamage) -> None:
    """Check that each epoch's claim is as it was written."""
    for epoch in epochs(reader.store):
        try:
            read_claim(reader.store, reader.run, epoch)
        except (DamagedError, OSError) as error:
            on_damage(Damage(fmt.claim_name(epoch), 0, 0, str(error)))


def verify_packs(reader: Reader, on_damage: OnDamage) -> None:
    """Check the first line of every pack: whose it is."""
    for epoch in epochs(reader.store):
        try:
            names = [f"{fmt.epoch_folder(epoch)}/{name}" for name in sorted(reader.store.list(fmt.epoch_folder(epoch)))]
        except OSError:
            continue  # the survey says that it can't be read
        for name in names:
            if fmt.number_of(name.rpartition("/")[2], ".pack") is not None:
                head = _head(reader.store, name)
                if not fmt.is_sound(head, fmt.file_seed(name), 0):
                    on_damage(Damage(name, 0, len(head), "its first line is not as it was written"))


def _head(store: Store, name: str) -> bytes:
    try:
        data = store.read(name, 0, 1 << 12)
    except OSError:
        return b""
    return data[: data.find(b"\n") + 1]


def verify_values(reader: Reader, on_damage: OnDamage) -> None:
    """Check every binary value that a sound line names, once."""
    checked: set[tuple[int, int, str]] = set()
    for line in reader.scan(_reported_elsewhere):
        for digest in values_of(line.raw):
            if (where := (line.epoch, line.segment, digest)) not in checked:
                checked.add(where)
                try:
                    reader.value(line, digest)
                except DamagedError as error:
                    on_damage(Damage(fmt.pack_name(line.epoch, line.segment), 0, 0, str(error)))


def verify(store: Store, on_damage: OnDamage) -> dict[str, Lineage[Place]]:
    """Check all of a run, hand each damage to `on_damage`, and return its trajectories."""
    return verify_run(open_reader(store, on_damage), on_damage)


def verify_run(reader: Reader, on_damage: OnDamage) -> dict[str, Lineage[Place]]:
    """Check all that `reader` can see, as `verify` does."""
    verify_claims(reader, on_damage)
    found = survey(reader, on_damage)
    verify_packs(reader, on_damage)
    verify_values(reader, on_damage)
    for key, lineage in found.items():
        for gap in lineage.story().gaps:
            on_damage(Damage(fmt.JOURNAL, 0, 0, f"{key}: {gap}"))
    return found


def values_of(raw: bytes) -> list[str]:
    """Return the hashes of the binary values that a line names."""
    if b',"pack":[' not in raw:
        return []
    return [digest for digest, _, _ in msgspec.json.decode(raw, type=fmt.Trailer).pack]


def _reported_elsewhere(damage: Damage) -> None:
    """`survey` has read the same lines and reported the same damage."""
