"""Parties that share keys without having met, and one turn from sealing to opening. For tests of protections.

Randomness is drawn from a seed, so that a test sees the same bytes in every run; only that of encryption is
the system's.
"""

import functools
import importlib.util
import random
import secrets

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from fedboost.privacy.ends import (
    EncryptedOpener,
    EncryptedSealer,
    OneLegOpener,
    OneLegSealer,
    TwoLegOpener,
    TwoLegSealer,
)
from fedboost.privacy.packing import Segment
from fedboost.privacy.pairwise import KEY_BYTES, AggregatorSetup, Group, PartySetup
from fedboost.privacy.protection import Tag
from fedboost.privacy.protections import PROTECTIONS

SESSION = b"session".ljust(32, b".")
TRANSCRIPT = b"transcript".ljust(32, b".")


def names(parties):
    return tuple(f"p{number:02}" for number in range(parties))


def drawing(seed):
    """A `draw` whose bytes are the same in every run."""
    return random.Random(seed).randbytes


def keystream(key, size):
    """Reference of a mask's first bytes: AES-256 in GCM's counter mode, whose first block is number 2."""
    return Cipher(algorithms.AES(key), modes.CTR(bytes(15) + b"\x02")).encryptor().update(bytes(size))


def keys_of_pairs(parties, seed=0):
    """Party to peer to the key that both have."""
    draw = drawing(f"keys {seed}")
    keys = {party: {} for party in parties}
    for low in parties:
        for high in parties:
            if low < high:
                keys[low][high] = keys[high][low] = draw(KEY_BYTES)
    return keys


def setup_of(party, group, keys, draw=None, session=SESSION, **others):
    """What a sealer is made from, by the keys of all pairs."""
    return PartySetup(party, group, session, lambda peers: keys[party], draw or drawing(party), **others)


def masked_sealers(parties, session=SESSION, group=None, seed=0, legs=2):
    """Party to its sealer."""
    group, keys = group or Group.of(parties), keys_of_pairs(parties, seed)
    kind = OneLegSealer if legs == 1 else TwoLegSealer
    return {
        party: kind(setup_of(party, group, keys, drawing(f"{party} {seed}"), session)) for party in parties
    }


def masked_opener(tag, parties=None, session=SESSION, group=None, legs=2):
    kind = OneLegOpener if legs == 1 else TwoLegOpener
    return kind(tag, AggregatorSetup(group or Group.of(parties or tag.roster), session))


NEEDS = {"paillier": ("phe", "gmpy2")}
OPENINGS = 100
"""Sums that a key holder opens at most."""


def installed(protection):
    return all(importlib.util.find_spec(package) for package in NEEDS[protection])


@functools.cache
def small_secret():
    """A key pair for all tests of a process, of 512 bits, which is as fast as it is insecure."""
    from fedboost.privacy import paillier

    return paillier.generate(512)


def keyholder_of(parties):
    return min(parties)


def encrypted_sealers(parties, max_openings=OPENINGS, session=SESSION, seed=0):
    """Party to its sealer, the key holder's with the secret key."""
    secret, keys = small_secret(), keys_of_pairs(parties, seed)
    return {
        party: EncryptedSealer(
            setup_of(
                party,
                Group.of(parties),
                keys,
                session=session,
                public=secret.public,
                secret=secret if party == keyholder_of(parties) else None,
                max_openings=max_openings,
            )
        )
        for party in parties
    }


def encrypted_opener(tag, public=None, keyholder=None, session=SESSION):
    public, holder = public or small_secret().public, keyholder or keyholder_of(tag.roster)
    return EncryptedOpener(
        tag, AggregatorSetup(Group.of(tag.roster), session, secrets.token_bytes, public, holder)
    )


def sealers_of(protection, parties, seed=0, shrinks=False):
    """Party to its sealer, as the table makes it. Where a key holder is used, it is the first by name."""
    row, group, keys = PROTECTIONS[protection], Group.of(parties), keys_of_pairs(parties, seed)
    secret = small_secret() if row.uses_key_holder else None
    return {
        party: row.sealer(
            setup_of(
                party,
                group,
                keys,
                drawing(f"{party} {seed}"),
                public=None if secret is None else secret.public,
                secret=secret if party == keyholder_of(parties) else None,
                max_openings=OPENINGS,
                sparse=True,
                shrinks=shrinks,
            )
        )
        for party in parties
    }


def opener_of(protection, tag, shrinks=False):
    """The opener of one turn, as the table makes it."""
    row = PROTECTIONS[protection]
    public = small_secret().public if row.uses_key_holder else None
    setup = AggregatorSetup(
        Group.of(tag.roster), SESSION, secrets.token_bytes, public, keyholder_of(tag.roster), shrinks
    )
    return row.opener(tag, setup)


def tag_of(roster, turn=1, attempt=0, cells=3, bits=64, transcript=TRANSCRIPT):
    return Tag(turn, attempt, tuple(roster), transcript, (Segment(cells, bits),))


def vectors(parties, cells, bits, seed=0):
    """A vector for each party, and their sum: it fits the cell and reaches its ends.

    What a party has may be beyond the cell, and even wrap in 64 bits: only the sum has to fit.
    """
    rng = np.random.default_rng(seed)
    lowest, highest = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    total = rng.integers(lowest, highest, cells, endpoint=True)
    total[: cells // 3], total[cells // 3 : cells // 2] = lowest, highest
    of = {party: rng.integers(lowest, highest, cells, endpoint=True) for party in parties[1:]}
    of[parties[0]] = total - sum(of.values(), np.zeros(cells, np.int64))
    return of, total


def upload(opener, sealers, of, tag, order=None):
    """Every party's parts and note, those of different parties in the order that `order` draws."""
    parts = {party: list(enumerate(sealers[party].seal(of[party], tag))) for party in tag.roster}
    while parts:
        party = order.choice(sorted(parts)) if order else min(parts)
        part, cells = parts[party].pop(0)
        opener.add(party, part, cells)
        if not parts[party]:
            opener.note(party, sealers[party].note())
            del parts[party]


def help_open(opener, sealers, order=None):
    """Ask for help until none is wanted, and open the sum."""
    while requests := opener.requests():
        asked = sorted(requests)
        if order:
            order.shuffle(asked)
        for party in asked:
            opener.assist(party, sealers[party].assist(requests[party]))
    return opener.open()
