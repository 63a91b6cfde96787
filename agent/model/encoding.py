"""Observations as JSON lines and TOML tables, with times as RFC 3339 strings in UTC."""

import re
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any, Union

import msgspec

from agent.model.observations import KINDS
from agent.model.observations.base import Observation
from agent.model.times import EPOCH, is_time, millis, rfc3339

_ANY_KIND: Any = Union[tuple(KINDS.values())]  # noqa: UP007 - the kinds are known at run time only


def from_fields(fields: Mapping[str, Any]) -> Observation:
    """Return the observation with these fields. Raises ValueError, a sentence that names the field."""
    plain = dict(fields)
    for name, value in fields.items():
        if not is_time(name):
            continue
        if isinstance(value, str):
            try:
                plain[name] = millis(value)
            except (ValueError, OverflowError) as error:
                msg = f"`{name}`: {error}"
                raise ValueError(msg) from error
        elif isinstance(value, datetime):
            plain[name] = (value - EPOCH) // timedelta(milliseconds=1)
        elif value is not None:
            msg = f"`{name}`: expected an RFC 3339 time in UTC, got {value!r}"
            raise ValueError(msg)
    # msgspec examines all kinds of a union with each call.
    kind = KINDS.get(str(plain.get("kind")), _ANY_KIND)
    observation: Observation = msgspec.convert(plain, kind, strict=True)
    for name, value in fields.items():
        if _exceeds_64_bits(value):
            msg = f"`{name}`: a number has more than 64 bits"
            raise ValueError(msg)
    return observation


def from_json(line: str | bytes) -> Observation:
    """Return the observation in one JSON line. Raises ValueError (msgspec's errors are) with what is wrong."""
    try:
        fields = msgspec.json.decode(line)
    except RecursionError as error:
        msg = "lists or objects are nested too deeply"
        raise ValueError(msg) from error
    if not isinstance(fields, dict):
        msg = f"expected an object, got {type(fields).__name__}"
        raise ValueError(msg)
    return from_fields(fields)


def to_fields(observation: Observation) -> dict[str, Any]:
    """Return the fields of a JSON line: `kind` first, times as RFC 3339, `seen_at` and `since` only if set."""
    fields: dict[str, Any] = msgspec.to_builtins(observation)
    for name in [name for name in fields if is_time(name)]:
        if fields[name] is not None:
            fields[name] = rfc3339(fields[name])
        elif name in ("seen_at", "since"):
            del fields[name]
    return fields


def to_json(observation: Observation) -> str:
    """Return the observation as one JSON line."""
    return msgspec.json.encode(to_fields(observation)).decode()


def printable(text: str) -> str:
    r"""Return the text with what UTF-8 cannot encode as escapes: a file name that is not UTF-8 as a\xe9.log."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return _SURROGATE.sub(_escaped, text)
    return text


def encodable(batch: Collection[Observation]) -> Collection[Observation]:
    """Return the observations with all their strings `printable`: journal, state and receivers take only UTF-8."""
    try:
        # Names that Kafka's client read are UTF-8, and there are many of them.
        _JSON.encode([observation for observation in batch if not observation.is_frequent])
    except UnicodeEncodeError:
        return [msgspec.convert(_printable(msgspec.to_builtins(observation)), _ANY_KIND) for observation in batch]
    return batch


def _exceeds_64_bits(value: Any) -> bool:
    """Return whether there is an integer in the value that no column of 64 bits holds."""
    match value:
        case int():
            return not -(2**63) <= value < 2**63
        case list():
            return any(map(_exceeds_64_bits, value))
        case Mapping():
            return any(map(_exceeds_64_bits, value.values()))
        case _:
            return False


def _printable(value: Any) -> Any:
    match value:
        case str():
            return printable(value)
        case list():
            return [_printable(item) for item in value]
        case dict():
            return {_printable(key): _printable(item) for key, item in value.items()}
        case _:
            return value


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    # os.fsdecode maps the bytes 0x80 to 0xff that are not UTF-8 to these.
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\u{code:04x}"


_JSON = msgspec.json.Encoder()
_SURROGATE = re.compile("[\ud800-\udfff]")
