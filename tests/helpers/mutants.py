"""Damage: bytes that nearly are a message, a file, or a line.

`mutate` works on any bytes; half of its ways know how protobuf lays out fields (and nothing of fedboost's
own), so that a damaged field stands in a message whose lengths are right and reaches what reads it.
The same draw gives the same damage: a `random.Random`, seeded, or hypothesis's.
"""

import json
import re
from collections.abc import Iterator
from random import Random

MAX_BYTES = 1 << 16
"""No mutant is longer: what long messages cost is asked by tests of their own."""
INTERESTING = (0, 1, 2, 7, 16, 32, 64, 127, 128, 255, 256, 1 << 16, 1 << 24, 2**31 - 1, 2**31, 2**32 - 1)
LONG = (2**48 - 1, 2**48, 2**63 - 1, 2**63, 2**64 - 1)
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

Field = tuple[int, int, int | bytes]
"""Number, wire type, value."""


def varint(value: int) -> bytes:
    """An unsigned integer as protobuf writes it."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def mutate(draw: Random, data: bytes, others: tuple[bytes, ...] = ()) -> bytes:
    """One to four damages of `data`; pieces of `others` may be put in."""
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        if draw.random() < 0.5:
            data = _mutate_fields(draw, data, others)
        else:
            data = _mutate_bytes(draw, bytearray(data), others)
    return data[:MAX_BYTES]


# ---- bytes ------------------------------------------------------------------------------------------


def _mutate_bytes(draw: Random, data: bytearray, others: tuple[bytes, ...]) -> bytes:
    place = draw.randrange(len(data) + 1)
    end = min(len(data), place + draw.choice((1, 2, 4, 8, 64, 1024)))
    match draw.randrange(9):
        case 0 if place < len(data):
            data[place] ^= 1 << draw.randrange(8)
        case 1 if place < len(data):
            data[place] = draw.randrange(256)
        case 2:
            del data[place:]
        case 3:
            del data[place:end]
        case 4:
            data[place:place] = data[place:end]
        case 5:
            data[place:place] = data[place:end] * draw.choice((2, 16, 256))
        case 6:
            data[place:place] = varint(draw.choice(INTERESTING + LONG))
        case 7:  # a length that promises more than there is
            data[place : place + 1] = varint(draw.choice(LONG + INTERESTING[-4:]))
        case _ if others:
            other = draw.choice(others)
            cut = draw.randrange(len(other) + 1)
            data[place:] = other[cut:]
    return bytes(data)


# ---- protobuf's fields ------------------------------------------------------------------------------


def fields_of(data: bytes) -> list[Field] | None:
    """The fields of a message; None if these bytes are none."""
    fields: list[Field] = []
    place = 0
    while place < len(data):
        tag, place = _read_varint(data, place)
        number, kind = tag >> 3, tag & 7
        if place < 0 or not 0 < number < 1 << 29:
            return None
        value: int | bytes
        if kind == _VARINT:
            value, place = _read_varint(data, place)
        elif kind in (_FIXED64, _FIXED32, _BYTES):
            size = {_FIXED64: 8, _FIXED32: 4}.get(kind, -1)
            if size < 0:
                size, place = _read_varint(data, place)
            value = data[place : place + size]
            if place < 0 or len(value) < size:
                return None
            place += size
        else:
            return None
        if place < 0:
            return None
        fields.append((number, kind, value))
    return fields


def _read_varint(data: bytes, place: int) -> tuple[int, int]:
    """The value and the place after it, -1 if there is none."""
    value = shift = 0
    while 0 <= place < len(data) and shift < 70:
        value |= (data[place] & 127) << shift
        shift, place = shift + 7, place + 1
        if data[place - 1] < 128:
            return value, place
    return 0, -1


def message_of(fields: list[Field]) -> bytes:
    """The bytes of these fields."""
    out = bytearray()
    for number, kind, value in fields:
        out += varint(number << 3 | kind)
        if isinstance(value, int):
            out += varint(value)
        else:
            out += varint(len(value)) + value if kind == _BYTES else value
    return bytes(out)


def _mutate_fields(draw: Random, data: bytes, others: tuple[bytes, ...]) -> bytes:
    fields = fields_of(data)
    if not fields:
        return _mutate_bytes(draw, bytearray(data), others)
    place = draw.randrange(len(fields))
    number, kind, value = fields[place]
    if isinstance(value, bytes) and kind == _BYTES and draw.random() < 0.7:
        inner = fields_of(value)
        changed = _mutate_fields if inner else _mutate_bytes
        fields[place] = number, kind, changed(draw, bytearray(value) if not inner else value, others)  # type: ignore[arg-type]
        return message_of(fields)
    match draw.randrange(6):
        case 0:
            del fields[place]
        case 1:
            fields.insert(draw.randrange(len(fields) + 1), fields[place])
        case 2:
            fields[place + 1 : place + 1] = [fields[place]] * draw.choice((2, 30, 300))
        case 3:
            fields[place] = draw.choice((1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 1000)), kind, value
        case 4:
            fields[place + 1 : place + 1] = [(number, _BYTES, b"")] * draw.choice((1, 30, 300))
        case _:
            fields[place] = number, kind, _other_value(draw, value)
    return message_of(fields)


def _other_value(draw: Random, value: int | bytes) -> int | bytes:
    if isinstance(value, int):
        near = (value + 1, max(value - 1, 0), value ^ 1 << draw.randrange(32))
        return draw.choice((*near, *INTERESTING, *LONG)) & (1 << 64) - 1
    return bytes(draw.randrange(256) for _ in range(min(len(value), 64))) + value[64:]


# ---- little that becomes much -----------------------------------------------------------------------


def bombs(data: bytes, size: int, path: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], bytes]]:
    """This message with one of its fields, at any depth, repeated until it has about `size` bytes: without
    content, and as it is. With each the numbers of the fields that lead there."""
    fields = fields_of(data) or []
    for place, (number, kind, value) in enumerate(fields):
        before, after = message_of(fields[:place]), message_of(fields[place + 1 :])
        if isinstance(value, bytes) and kind == _BYTES:
            for content in {b"", value}:
                unit = message_of([(number, kind, content)])
                yield (*path, number, int(bool(content))), before + unit * (size // len(unit)) + after
            for deeper, inner in bombs(value, size, (*path, number)):
                yield deeper, before + message_of([(number, kind, inner)]) + after


def text_bombs(values: object, size: int) -> Iterator[str]:
    """These values as JSON, with one of their lists or tables, at any depth, replaced by about `size`
    characters: of little things, and of unknown keys."""
    if isinstance(values, dict | list):
        yield "[" + ",".join(['""'] * (size // 3)) + "]"
        yield "{" + ",".join(f'"{i:x}":1' for i in range(size // 9)) + "}"
    if isinstance(values, dict):
        for key in values:
            others = "".join(f"{json.dumps(k)}:{json.dumps(v)}," for k, v in values.items() if k != key)
            for inner in text_bombs(values[key], size):
                yield "{" + others + json.dumps(key) + ":" + inner + "}"
        others = json.dumps(values)[1:-1]
        yield "{" + "".join(f'"{i:x}":1,' for i in range(size // 9)) + (others or '"0":1') + "}"


# ---- text -------------------------------------------------------------------------------------------

VALUES = (
    *(
        "0",
        "-1",
        "1",
        "2",
        "65536",
        "4294967296",
        "9" * 30,
        "9" * 5000,
        "1e39",
        "1e400",
        "-0.0",
        "NaN",
        "nan",
    ),
    *("Infinity", "-inf", "true", "false", "null", '""', '"x"', '"\\ud800"', '"\\n"', '"\\u0000"', '"é"'),
    *("[]", "{}", "[[]]", "[" * 600, "[" * 100 + "]" * 100, "[1,1]", '{"a":1}', '["a","a"]', "1979-05-27"),
    *("{a = 1}", "{" + ".".join("a" * 3000) + " = 1}", "[{" + ".".join("a" * 3000) + " = 1}]", "0x1f", "0_1"),
)
"""What stands where something else should, in JSON and in TOML."""
_VALUE = re.compile(r'"(?:[^"\\\n]|\\.)*"|-?[0-9][-+.0-9eE]*|\btrue\b|\bfalse\b|\bnull\b|\[|\]|\{|\}')


def mutate_text(draw: Random, text: bytes) -> bytes:
    """One to four damages of a text in JSON, TOML or PEM: values, lines or bytes."""
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        places = [match.span() for match in _VALUE.finditer(text.decode(errors="replace"))]
        match draw.randrange(4):
            case 0 | 1 if places and text.isascii():
                start, end = draw.choice(places)
                text = text[:start] + draw.choice(VALUES).encode() + text[end:]
            case 2:
                lines = text.splitlines(keepends=True)
                place, other = draw.randrange(len(lines) + 1), draw.randrange(len(lines) + 1)
                lines[place:place] = lines[other : other + draw.choice((1, 2, 5))]
                if draw.random() < 0.5:
                    del lines[other : other + draw.choice((1, 2))]
                text = b"".join(lines)
            case _:
                text = _mutate_bytes(draw, bytearray(text), ())
    return text
