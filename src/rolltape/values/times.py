"""Dates and times of the standard library. Zones are named, never resolved to an offset, and a fold is kept."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

from rolltape.errors import FormatError
from rolltape.values.names import look_up

if TYPE_CHECKING:
    from rolltape.values.decoder import Decoder, Readers
    from rolltape.values.encoder import Encoder, Writer, Writers
    from rolltape.values.pointer import Link


def write_moment(encoder: Encoder, value: dt.datetime | dt.time, at: Link, depth: int) -> dict[str, Any]:
    out: dict[str, Any] = {f"${type(value).__name__}": value.replace(tzinfo=None).isoformat()}
    if value.fold:
        out["fold"] = 1
    if value.tzinfo is not None:
        out["zone"] = encoder.value(value.tzinfo, (at, "zone"), depth + 1)
    return out


def write_date(encoder: Encoder, value: dt.date, at: Link, depth: int) -> dict[str, Any]:
    return {"$date": value.isoformat()}


def write_timedelta(encoder: Encoder, value: dt.timedelta, at: Link, depth: int) -> dict[str, Any]:
    return {"$timedelta": [value.days, value.seconds, value.microseconds]}


def write_timezone(encoder: Encoder, value: dt.timezone, at: Link, depth: int) -> dict[str, Any]:
    offset, *name = value.__getinitargs__()  # type: ignore[attr-defined]  # what copying one uses
    out = {"$timezone": [offset.days, offset.seconds, offset.microseconds]}
    return out | {"name": encoder.value(name[0], (at, "name"), depth + 1)} if name else out


def find(kind: type) -> Writer | None:
    return write_zoneinfo if kind is look_up("zoneinfo:ZoneInfo") else None


def write_zoneinfo(encoder: Encoder, value: Any, at: Link, depth: int) -> dict[str, Any]:
    if value.key is None:
        raise encoder.refused(value, at, "A zone that was read from a file has no name: use ZoneInfo(name).")
    return {"$zoneinfo": value.key}


def read_datetime(decoder: Decoder, node: Any, at: Link, depth: int) -> dt.datetime:
    moment = dt.datetime.fromisoformat(node["$datetime"])
    return moment.replace(tzinfo=_zone(decoder, node, at, depth), fold=node.get("fold", 0))


def read_time(decoder: Decoder, node: Any, at: Link, depth: int) -> dt.time:
    moment = dt.time.fromisoformat(node["$time"])
    return moment.replace(tzinfo=_zone(decoder, node, at, depth), fold=node.get("fold", 0))


def read_date(decoder: Decoder, node: Any, at: Link, depth: int) -> dt.date:
    return dt.date.fromisoformat(node["$date"])


def read_timedelta(decoder: Decoder, node: Any, at: Link, depth: int) -> dt.timedelta:
    return _delta(node["$timedelta"])


def read_timezone(decoder: Decoder, node: Any, at: Link, depth: int) -> dt.timezone:
    offset = _delta(node["$timezone"])
    if "name" not in node:
        return dt.timezone(offset)
    return dt.timezone(offset, decoder.value(node["name"], (at, "name"), depth + 1))


def read_zoneinfo(decoder: Decoder, node: Any, at: Link, depth: int) -> Any:
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError  # it loads sysconfig, which few need

    try:
        return ZoneInfo(node["$zoneinfo"])
    except ZoneInfoNotFoundError as error:
        return decoder.absent(
            node,
            at,
            depth,
            FormatError(
                f"{decoder.place(at)}: this machine has no time zone {node['$zoneinfo']!r}. "
                "Install its tzdata, or the package `tzdata`."
            ),
            error,
        )


def _zone(decoder: Decoder, node: Any, at: Link, depth: int) -> dt.tzinfo | None:
    zone = decoder.value(node["zone"], (at, "zone"), depth + 1) if "zone" in node else None
    if not isinstance(zone, dt.tzinfo | None):  # a stand-in: a moment cannot be made with it
        raise FormatError(f"{decoder.place(at)}: this machine has not the time zone of a recorded moment: {zone!r}")
    return zone


def _delta(parts: Any) -> dt.timedelta:
    days, seconds, microseconds = parts
    return dt.timedelta(days, seconds, microseconds)


WRITERS: Writers = {
    dt.datetime: write_moment,
    dt.time: write_moment,
    dt.date: write_date,
    dt.timedelta: write_timedelta,
    dt.timezone: write_timezone,
}
READERS: Readers = {
    "$datetime": (read_datetime, {"$datetime": str}, {"fold": int, "zone": dict}),
    "$time": (read_time, {"$time": str}, {"fold": int, "zone": dict}),
    "$date": (read_date, {"$date": str}, {}),
    "$timedelta": (read_timedelta, {"$timedelta": list}, {}),
    "$timezone": (read_timezone, {"$timezone": list}, {"name": object}),
    "$zoneinfo": (read_zoneinfo, {"$zoneinfo": str}, {}),
}
