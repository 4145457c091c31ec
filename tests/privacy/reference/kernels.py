"""Naive references of `fedboost.privacy.kernels`: Python integers, bit by bit, written for reading."""


def stream(values, bits):
    """The low bits of each value, one after the other, lowest first, in words of 64 bits."""
    whole = 0
    for place, value in enumerate(values):
        whole |= (int(value) % 2**bits) << (place * bits)
    words = -(-len(values) * bits // 64)
    return [(whole >> (64 * word)) % 2**64 for word in range(words)]


def packed(values, bits):
    """The words of one piece: lanes of 64 cells, whose words take turns, then the cells that are left."""
    lanes, rest = len(values) // 64, len(values) % 64
    streams = [stream(values[lane : 64 * lanes : lanes], bits) for lane in range(lanes)]
    words = [streams[lane][word] for word in range(bits) for lane in range(lanes)]
    return words + stream(values[len(values) - rest :], bits)
