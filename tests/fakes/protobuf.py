"""Messages of protobuf's own library, from a table of their fields. Only the fields that tests need are listed."""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "string": _Field.TYPE_STRING, "int64": _Field.TYPE_INT64, "int32": _Field.TYPE_INT32, "bool": _Field.TYPE_BOOL,
    "bytes": _Field.TYPE_BYTES, "fixed64": _Field.TYPE_FIXED64, "float": _Field.TYPE_FLOAT,
}  # fmt: skip


def messages(package: str, table: dict[str, dict[str, tuple[int, str]]]) -> dict[str, Any]:
    """Return the classes of a table: name -> field -> number and type.

    A type is a scalar, `enum`, `map` (of strings), or a message of the table; `*` before it makes it repeated.
    """
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{package}.proto", package=package, syntax="proto3"
    )
    for name, fields in table.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            _add(message, f".{package}", field, number, kind)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for name in table
    }


def _add(message: Any, package: str, field: str, number: int, kind: str) -> None:
    added = message.field.add(name=field, number=number, label=_Field.LABEL_OPTIONAL)
    if kind == "map":
        entry = message.nested_type.add(name=f"{field.title().replace('_', '')}Entry")
        entry.options.map_entry = True
        _add(entry, package, "key", 1, "string")
        _add(entry, package, "value", 2, "string")
        added.type_name = f"{package}.{message.name}.{entry.name}"
    if kind.startswith("*") or kind == "map":
        added.label = _Field.LABEL_REPEATED
    if kind.lstrip("*") in _SCALARS:
        added.type = _SCALARS[kind.lstrip("*")]
        return
    added.type = _Field.TYPE_MESSAGE
    added.type_name = added.type_name or f"{package}.{kind.lstrip('*')}"
