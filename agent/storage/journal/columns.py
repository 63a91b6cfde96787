"""Observations as Arrow columns, by their fields, and back."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
from msgspec import inspect, structs

from agent.model.observations.base import Observation
from agent.model.times import is_time

INSTANT = pa.timestamp("ms", tz="UTC")
"""The type of times."""

MISFITS = (ValueError, TypeError, OverflowError, KeyError)

_SCALARS: Mapping[type[inspect.Type], pa.DataType] = {
    inspect.BoolType: pa.bool_(),
    inspect.IntType: pa.int64(),
    inspect.FloatType: pa.float64(),
    inspect.StrType: pa.string(),
}


class _Field(NamedTuple):
    """A field as a column. nested: its values are more than a number or a string, and of the type `python`."""

    name: str
    type: pa.DataType
    get: Callable[[Observation], Any]
    nested: bool
    python: Any
    required: bool
    nullable: bool
    default: Any


class Columns:
    """The columns of one kind: the journal's `position`, then the fields of the observation.

    Raises TypeError for a kind with a field whose type has no column here.
    """

    def __init__(self, kind: type[Observation]) -> None:
        self._kind = kind
        self._fields = [
            _Field(
                field.name,
                INSTANT if is_time(field.name) else _arrow(described, f"{kind.__name__}.{field.name}"),
                attrgetter(field.name),
                type(_present(described)) not in _SCALARS,
                field.type,
                field.required,
                _is_nullable(described),
                field.default,
            )
            for field in structs.fields(kind)
            for described in [inspect.type_info(field.type)]
        ]
        self.schema = pa.schema([("position", pa.int64()), *((field.name, field.type) for field in self._fields)])

    def batch(self, rows: Sequence[tuple[int, Observation]]) -> pa.RecordBatch:
        """Return positions and observations as a record batch.

        Raises one of MISFITS if a value does not fit its column.
        """
        observations = [observation for _, observation in rows]
        columns = [pa.array([position for position, _ in rows], type=pa.int64())]
        for field in self._fields:
            values: Any = list(map(field.get, observations))
            columns.append(pa.array(msgspec.to_builtins(values) if field.nested else values, type=field.type))
        return pa.record_batch(columns, schema=self.schema)

    def rows(self, batch: pa.RecordBatch) -> Iterator[tuple[int, Observation]]:
        """Return the batch's positions and observations; a field that an older version did not write takes its default.

        Raises ValueError where a column is missing or of another type, or a value is not what the field takes.
        """
        kind, names, columns = self._kind, [], []
        positions = _without_nulls(column_of(batch, "position", pa.int64()), "position").to_pylist()
        for field in self._fields:
            if not field.required and batch.schema.get_field_index(field.name) < 0:
                continue
            column = column_of(batch, field.name, field.type)
            if field.required and not field.nullable:
                _without_nulls(column, field.name)
            if field.default is None and column.null_count == len(column):
                continue  # saves a third of the time where nothing was polled
            names.append(field.name)
            if field.nested:
                nested = column.to_pylist(maps_as_pydicts="strict")
                columns.append([msgspec.convert(_plain(value), field.python) for value in nested])
            else:
                # Timestamps come as integers by way of int64: as datetimes they take a hundred times as long.
                columns.append((column.view(pa.int64()) if field.type == INSTANT else column).to_pylist())
        observations = [kind(**dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)]
        return zip(positions, observations, strict=True)


def _is_nullable(kind: inspect.Type) -> bool:
    return isinstance(kind, inspect.NoneType) or (
        isinstance(kind, inspect.UnionType) and any(isinstance(member, inspect.NoneType) for member in kind.types)
    )


def _present(kind: inspect.Type) -> inspect.Type:
    """Return the type of the values that are not None."""
    if isinstance(kind, inspect.UnionType):
        present = [member for member in kind.types if not isinstance(member, inspect.NoneType)]
        return present[0] if len(present) == 1 else kind
    return kind


def _arrow(kind: inspect.Type, place: str) -> pa.DataType:
    """Return the Arrow type of a field; a fixed tuple is a struct of _1, _2, ... as in Spark and Scala."""
    match _present(kind):
        case inspect.EnumType() | inspect.LiteralType():
            return pa.string()
        case inspect.VarTupleType(item_type=item) | inspect.ListType(item_type=item):
            return pa.list_(_arrow(item, place))
        case inspect.TupleType(item_types=items):
            return pa.struct([(f"_{number}", _arrow(item, place)) for number, item in enumerate(items, 1)])
        case inspect.StructType(fields=fields):
            return pa.struct([(field.name, _arrow(field.type, place)) for field in fields])
        case inspect.DictType(key_type=key, value_type=value):
            return pa.map_(_arrow(key, place), _arrow(value, place))
        case scalar if type(scalar) in _SCALARS:
            return _SCALARS[type(scalar)]
        case other:
            msg = f"{place}: {type(other).__name__} has no column in the journal"
            raise TypeError(msg)


def column_of(batch: pa.RecordBatch, name: str, kind: pa.DataType) -> pa.Array:
    """Return a column as this type. Raises ValueError if it is missing or cannot be cast."""
    index = batch.schema.get_field_index(name)
    if index < 0:
        msg = f"column `{name}` is missing"
        raise ValueError(msg)
    column = batch.column(index)
    return column if column.type == kind else column.cast(kind)


def _without_nulls(column: pa.Array, name: str) -> pa.Array:
    if column.null_count:
        msg = f"`{name}` has no value"
        raise ValueError(msg)
    return column


def _plain(value: Any) -> Any:
    """Return a value as Arrow gives it, with the structs that stand for fixed tuples as lists again.

    Without nulls in structs: a field that an older version did not write takes its default.
    """
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        plain = {name: _plain(item) for name, item in value.items() if item is not None}
        return list(plain.values()) if "_1" in plain else plain
    return value
