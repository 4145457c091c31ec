"""Length-prefixed encoding of byte strings: the input of hashes, signatures and seals.

Promises: `unpack(pack(*fields)) == fields`, and different fields never pack to the same bytes.
Refuses: bytes that `pack` cannot have written (PeerError).
"""

from fedboost.errors import PeerError

LENGTH_BYTES, _SHORT = 4, 256
_LENGTHS = tuple(size.to_bytes(LENGTH_BYTES) for size in range(_SHORT))
"""The lengths of short fields, encoded."""


def pack(*fields: bytes) -> bytes:
    """Encode each field behind its length, four bytes big-endian."""
    packed = bytearray()
    for field in fields:
        size = len(field)
        packed += _LENGTHS[size] if size < _SHORT else size.to_bytes(LENGTH_BYTES)
        packed += field
    return bytes(packed)


def unpack(data: bytes) -> list[bytes]:
    """Decode the fields in `data`."""
    fields, offset = [], 0
    while offset < len(data):
        start = offset + LENGTH_BYTES
        end = start + int.from_bytes(data[offset:start])
        if start > len(data) or end > len(data):
            raise PeerError("bytes that end within a field")
        fields.append(data[start:end])
        offset = end
    return fields


def number(value: int) -> bytes:
    """An integer of up to 64 bits as a field: eight bytes, big-endian, signed."""
    return value.to_bytes(8, signed=True)
